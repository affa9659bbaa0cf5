"""The networks of published runs, and how they were trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from common.published_machines import CannotBeSaidError
from flexlegion import SGD, Adam, LazyAdam, Model
from flexlegion.networks.network import Network
from flexlegion.objective.training import TrainingSpec
from flexlegion.zoo import build

Row = Mapping[str, Any]

STORAGES = ("fp32", "fp16", "bf16")  # by how the precision begins
_RESNETS = {"ResNet-50": "resnet50", "ResNet-101": "resnet101", "ResNet-152": "resnet152"}


def network_of(row: Row, layers: int | None = None) -> Network:
    """The network, and how it is trained; of so many layers, if that is said."""
    family = row["model"]["family"]
    builders = {
        "gpt": _gpt,
        "mpt": _gpt,
        "llama": _llama,
        "bert": _bert,
        "moe": _moe,
        "cnn": _cnn,
        "face": _face,
        "recsys": _recommender,
    }
    if family not in builders:
        raise CannotBeSaidError(f"no network like {row['model']['name']}")
    model = builders[family](row, layers or row["model"]["layers"])
    training = TrainingSpec.of(
        optimizer=_optimizer(row), micro_batches=micro_batches(row), storage=storage_of(row)
    )
    return Network.of(model, training)


def micro_batches(row: Row) -> int:
    """Of an iteration; one where the row does not say."""
    return int(row["accumulation"] or 1)


def storage_of(row: Row) -> str:
    """In which type activations are."""
    precision = row["precision"]
    if precision == "tf32":
        return "fp32"
    if "bf16/fp16" in precision or precision.startswith("fp8"):
        return "bf16"
    storage = next((its for its in STORAGES if precision.startswith(its)), None)
    if storage is None:
        raise CannotBeSaidError(f"precision {precision}")
    return storage


def _optimizer(row: Row) -> Adam | LazyAdam | SGD:
    """LAMB has Adam's states, and reads them as often; LARS is SGD with momentum.

    Alpa's experts were trained by Adafactor, whatever the row says (benchmark_2d_one_case_moe.py of
    the commit that it names): it keeps sums of rows and columns alone, as good as no states.
    """
    text = row["optimizer"]
    if row["system"].startswith("Alpa") and row["model"]["family"] == "moe":
        return SGD()
    if "lazy" in text:
        return LazyAdam()
    if "adam" in text or "lamb" in text:
        return Adam(clip_norm=1.0 if "clip" in text else None)
    if "sgd" in text or text == "none":
        return SGD(momentum=0.9 if "momentum" in text or "lars" in text else 0.0)
    raise CannotBeSaidError(f"optimizer {text}")


def _dropout(row: Row) -> float:
    """Of GPT: what a row says, or 0.1, as is the default of these; newer recipes have none.

    NeMo's is in its configuration (conf/training/gpt3/5b.yaml), that of GPT-2 of transformers in
    its GPT2Config.
    """
    said = row["model"]["extra"].get("dropout")
    if said is not None:
        return float(said)
    default = ("Megatron-LM", "Megatron-DeepSpeed", "NeMo", "OneFlow", "PyTorch Lightning")
    return 0.1 if row["system"].startswith(default) else 0.0


def is_lazy(row: Row) -> bool:
    """Whether updates touch only the rows of tables that were looked up, as recommenders' do."""
    said = row["optimizer"]
    return "lazy" in said or (row["model"]["family"] == "recsys" and "dense" not in said)


def more_bytes(row: Row) -> int:
    """What an update reads more for an element than an optimizer with these states has to.

    Alpa's in half precision reads the old weights, "so that donation works" (alpa e0ae8bf8,
    alpa/model/model_util.py, TrainState); its Adafactor squares gradients by rows, by columns and,
    once divided, all, and weights, each in a kernel that sums (optax_adafactor, there).
    """
    if not row["system"].startswith("Alpa") or "16" not in row["precision"]:
        return 0
    return 2 + (3 * 2 + 4 if row["model"]["family"] == "moe" else 0)


def sorted_bytes(row: Row) -> int:
    """What finding the rows of a lazy update passes for each look-up.

    OneFlow sorts numbers of rows with their places by cub, in 5 turns by 7 of 32 bits: each reads
    the numbers, then reads and writes pairs of 4 and 8 bytes. It has made the places (8), and finds
    runs (16), adds them up (16), and writes for each place its run (16 and 24; oneflow 0.6,
    core/kernel/indexed_slices_reduce_sum_kernel_util.cpp, unique_kernel_util.cu).
    """
    turns, number, place = 5, 4, 8
    if not (is_lazy(row) and row["system"].startswith("OneFlow")):
        return 0
    return turns * (number + 2 * (number + place)) + 80


def _batch(row: Row) -> int:
    """What data parallelism's micro-batches make together."""
    ways = row["parallel"]
    if ways.get("dp") is None or row["global_batch"] is None:
        raise CannotBeSaidError("batch, or how GPUs were divided was not published")
    if row["micro_batch"] is None:
        return int(row["global_batch"])
    # Where it does not divide, as published, there are as many micro-batches as were told.
    return int(round(row["micro_batch"] * ways["dp"]) * micro_batches(row))


def _vocabulary(row: Row) -> int | None:
    """What the head computes: some fill up the tokenizer's, for tensor cores.

    NVIDIA's BERT for PyTorch does to a multiple of 8 (DeepLearningExamples, run_pretraining.py),
    OneFlow's GPT-2 of 2020 to one of 128 (OneFlow-Benchmark bf832bed, gpt-2/src/train_gpt2.sh).
    """
    its, steps = row["model"]["vocab"], 1
    if row["model"]["family"] == "bert" and "pytorch" in row["system"]:
        steps = 8
    if row["model"]["family"] == "gpt" and row["system"].startswith("OneFlow"):
        steps = 128
    return -(-its // steps) * steps if its else None


def _gpt(row: Row, layers: int) -> Model:
    its = row["model"]
    if its["ffn"] != 4 * its["hidden"]:
        raise CannotBeSaidError("an MLP that is not four times as wide")
    return build(
        "gpt",
        _batch(row),
        layers=layers,
        hidden=its["hidden"],
        heads=its["heads"],
        steps=its["seq"],
        vocabulary=_vocabulary(row) or 51_200,
        dropout=_dropout(row),
    )


def _llama(row: Row, layers: int) -> Model:
    its = row["model"]
    return build(
        "llama",
        _batch(row),
        layers=layers,
        hidden=its["hidden"],
        heads=its["heads"],
        kv_heads=its["kv_heads"],
        ffn=its["ffn"],
        steps=its["seq"],
        vocabulary=its["vocab"],
    )


def _moe(row: Row, layers: int) -> Model:
    """Mixtral, or GShard's experts in some of the blocks."""
    its, extra = row["model"], row["model"]["extra"]
    sizes = {
        "layers": layers,
        "hidden": its["hidden"],
        "heads": its["heads"],
        "kv_heads": its["kv_heads"],
        "ffn": its["ffn"],
        "steps": its["seq"],
        "vocabulary": its["vocab"],
        "experts": extra.get("experts", 8),
        "chosen": extra.get("topk", 2),
    }
    if "Mixtral" in its["name"]:
        return build("mixtral", _batch(row), **sizes)
    every = extra.get("moe_every", 1)
    return build("moe", _batch(row), every=every, gated=False, **sizes)


def _bert(row: Row, layers: int) -> Model:
    its = row["model"]
    predictions = its["extra"].get("max_predictions", 20 if its["seq"] == 128 else 80)
    if row["system"] == "ngc-pytorch":
        # NVIDIA's of 2020 applies the head to all positions, and leaves out labels after that
        # (DeepLearningExamples, PyTorch/LanguageModeling/BERT/modeling.py, BertForPreTraining).
        predictions = its["seq"]
    return build(
        "bert",
        _batch(row),
        layers=layers,
        hidden=its["hidden"],
        heads=its["heads"],
        steps=its["seq"],
        vocabulary=_vocabulary(row),
        predictions=predictions,
        dropout=0.1,  # as Devlin et al. have it, and all recipes since
    )


def _cnn(row: Row, layers: int) -> Model:
    del layers
    name, extra = row["model"]["name"], row["model"]["extra"]
    if name.startswith("Wide-ResNet"):
        return build(
            "resnet50",
            _batch(row),
            width=extra["base_channels"],
            width_factor=extra["width_factor"],
        )
    for prefix, known in _RESNETS.items():
        if name.startswith(prefix):
            return build(known, _batch(row))
    others = {"Inception-v3": "inception_v3", "VGG16": "vgg16", "AlexNet": "alexnet"}
    for prefix, known in others.items():
        if name.startswith(prefix):
            return build(known, _batch(row))
    raise CannotBeSaidError(f"no network like {name}")


def _face(row: Row, layers: int) -> Model:
    del layers
    name, extra = row["model"]["name"], row["model"]["extra"]
    backbone = "ir100" if "100" in name else "ir50"
    classes = extra["classes"]
    if "10%" in str(row["parallel"].get("fc")):
        classes //= 10  # of which the logits are computed
    return build("insightface", _batch(row), backbone=backbone, classes=classes)


def _recommender(row: Row, layers: int) -> Model:
    del layers
    extra, name = row["model"]["extra"], row["model"]["name"]
    if "DLRM" in name:
        # MLPerf's: Criteo's terabyte, 188 million rows in 26 tables.
        return build("dlrm", _batch(row), rows=7_221_823)
    if "Wide" not in name:
        raise CannotBeSaidError(f"no network like {name}")
    # HugeCTR's are of each GPU: memory grows by as many bytes a row on eight as on one (DLPerf,
    # HugeCTR/wdl/README.md; the workspace of its scripts is one GPU's).
    parts = row["hardware"]["gpus"] if row["system"].startswith("HugeCTR") else 1
    return build(
        "wide_deep",
        _batch(row),
        numbers=extra["dense_fields"],
        fields=extra["deep_sparse_fields"],
        tables=1,
        rows=parts * extra["deep_vocab"],
        wide_fields=extra.get("wide_sparse_fields"),
        wide_rows=parts * extra.get("wide_vocab", extra["deep_vocab"]),
        embedding=extra["embedding"],
        layers=extra["hidden_layers"],
        dropout=extra.get("dropout", 0.0),
        hidden=row["model"]["hidden"],
    )
