"""The zoo's networks have the sizes that the literature gives, and plans under any strategy."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from plan_properties import CHECKS
from sample_plans import weights_of, zoo_plan

from flexlegion import Model
from flexlegion.base.errors import UserError
from flexlegion.graph.graph import Graph
from flexlegion.known_strategies import resolve
from flexlegion.machine.devices import Devices
from flexlegion.plan.plan import Plan
from flexlegion.transforms.losses import add_loss
from flexlegion.zoo import ZOO, build


def lstm_weights(d: int, h: int) -> int:
    """Four gates over input and state, with a bias."""
    return 4 * h * (d + h + 1)


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        # LeNet-5's layers, S2 and C3 fully connected: 156 + 2416 + 48120 + 10164 + 850.
        ("lenet", 61_706),
        # One weird trick's AlexNet, 61.1 million (torchvision.models.alexnet: 61,100,840).
        ("alexnet", 61_100_840),
        # Inception-v3: torchvision.models.inception_v3 has 27,161,264, of which the auxiliary
        # classifier has 3,326,696; 23.8 million in keras.io/api/applications.
        ("inception_v3", 27_161_264 - 3_326_696),
        # torchvision.models.resnet50, resnet101, resnet152 and vgg16.
        ("resnet50", 25_557_032),
        ("resnet101", 44_549_160),
        ("resnet152", 60_192_808),
        ("vgg16", 138_357_544),
        # torchvision.models.vit_b_16, as vit_l_16 and vit_h_14 below.
        ("vit", 86_567_656),
        # FlexFlow, section 8.1, by hand: embedding, layers, output.
        (
            "rnntc",
            18_765 * 300 + lstm_weights(300, 1024) + 3 * lstm_weights(1024, 1024) + 2 * 1025,
        ),
        ("rnnlm", 10_000 * 2048 + 2 * lstm_weights(2048, 2048) + 10_000 * 2049),
        # Two embeddings, four layers, attention W_a and W_c, output.
        (
            "nmt",
            2 * 32_000 * 1024
            + 4 * lstm_weights(1024, 1024)
            + 1024 * 1024
            + 1024 * 2048
            + 32_000 * 1025,
        ),
        # GPT-2 small: 124 million (github.com/openai/gpt-2); 124,439,808 in transformers' gpt2.
        ("transformer", 124_439_808),
        ("gpt", 124_439_808),
        # transformers' BertForMaskedLM, bert-base-uncased.
        ("bert", 109_514_298),
        # Two tables of tokens; a block's attention, router, experts and norms; the last norm.
        (
            "moe",
            2 * 32_000 * 768
            + 12 * (768 * (2 * 768 + 2 * 256) + 768 * 8 + 3 * 8 * 2048 * 768 + 2 * 768)
            + 768,
        ),
        # transformers' Llama-2-7b-hf and Mixtral-8x7B-v0.1.
        ("llama", 6_738_415_616),
        ("mixtral", 46_702_792_704),
        # ResNet-50's convolutions and normalisations (25,557,032 in torchvision, with an output
        # layer), the embedding of 4x4x2048, and a vector a person.
        ("insightface", 25_557_032 - 1000 * 2049 + 512 * (4 * 4 * 2048 + 1) + 85_742 * 512),
        # Tables of 16 columns and one, linear weights; the deep part's layers, and its output.
        ("wide_deep", 26 * 100_000 * 17 + 13 + 430 * 1024 + 6 * 1025 * 1024 + 1025),
        # Tables, the layers over 13 numbers, and those over 27 * 26 / 2 products and 128 units.
        (
            "dlrm",
            26 * 1_000_000 * 128
            + (14 * 512 + 513 * 256 + 257 * 128)
            + (480 * 1024 + 1025 * 1024 + 1025 * 512 + 513 * 256 + 257),
        ),
    ],
)
def test_numbers_of_weights(name: str, weights: int) -> None:
    assert weights_of(build(name, 2).graph) == weights


@pytest.mark.parametrize(
    ("name", "preset", "weights"),
    [
        # transformers' gpt2-medium, gpt2-large and gpt2-xl, and bert-large-uncased.
        ("gpt", "345m", 354_823_168),
        ("gpt", "762m", 774_030_080),
        ("gpt", "1.5b", 1_557_611_200),
        ("bert", "large", 335_174_458),
        # The files of transformers' TinyLlama_v1.1, Llama-2-13b, CodeLlama-34b, Llama-2-70b,
        # Meta-Llama-3-8B and -70B, Llama-3.1-405B have as many.
        ("llama", "tinyllama", 1_100_048_384),
        ("llama", "2-13b", 13_015_864_320),
        ("llama", "34b", 33_743_970_304),
        ("llama", "2-70b", 68_976_648_192),
        ("llama", "3-8b", 8_030_261_248),
        ("llama", "3-70b", 70_553_706_496),
        ("llama", "3.1-405b", 405_853_388_800),
        ("mixtral", "8x22b", 140_620_634_112),
        ("vit", "l-16", 304_326_632),
        ("vit", "h-14", 632_045_800),
    ],
)
def test_numbers_of_weights_of_presets(name: str, preset: str, weights: int) -> None:
    assert weights_of(build(name, 2, preset=preset).graph) == weights


def test_presets_of_gpt_3_have_the_weights_of_their_names() -> None:
    for preset in ("125m", "350m", "760m", "1.3B", "2.7B", "6.7B", "13B", "175B"):
        weights = weights_of(build("gpt", 2, steps=2048, preset=preset).graph)
        named = float(preset[:-1]) * (1e6 if preset[-1] == "m" else 1e9)
        assert weights == pytest.approx(named, rel=0.03), preset


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("alexnet", 0.7142),  # torchvision's documentation of the weights: 0.71
        ("inception_v3", 5.713),  # there: 5.71
        ("resnet50", 4.089),  # there: 4.09
        ("resnet101", 7.801),  # there: 7.8
        ("resnet152", 11.514),  # there: 11.51
        ("vgg16", 15.470),  # there: 15.47
        ("vit", 17.564),  # there: 17.56
    ],
)
def test_multiply_adds_of_an_image(name: str, billions: float) -> None:
    operators = build(name, 3).graph.operators
    products = [op for op in operators if op.kind.family in ("convolution", "matmul")]
    flops = sum(op.kind.flops(op.input_shapes) for op in products)
    assert flops / 3 == pytest.approx(2 * billions * 1e9, rel=0.005)  # biases included


def test_multiply_adds_of_resnet_layers() -> None:
    """By hand: conv1 makes 112x112x64 of 7x7x3, and the last block's 3x3 7x7x512 of 512."""
    operators = {op.name: op for op in build("resnet101", 1).graph.operators}
    for name, flops in (
        ("conv1", 2 * 112 * 112 * 64 * 7 * 7 * 3),
        ("stage4.block3.conv2", 2 * 7 * 7 * 512 * 3 * 3 * 512),
    ):
        op = operators[name]
        assert op.kind.flops(op.input_shapes) == flops


@pytest.mark.parametrize("name", ZOO)
def test_output_is_a_distribution_over_the_classes(name: str) -> None:
    last = build(name, 2).graph.operators[-1]
    sizes = ZOO[name].sizes_with({})
    if ZOO[name].task == "clicks":  # of two classes, the second one's probability
        assert (last.kind.type, last.output.shape) == ("sigmoid", (2, 1))
        return
    assert last.kind.type == ("cosine" if name == "insightface" else "softmax")
    steps = () if "classes" in sizes else (sizes["steps"],)
    assert last.output.shape == (2, *steps, sizes.get("classes") or sizes["vocabulary"])


@pytest.mark.parametrize("name", ZOO)
def test_defaults(name: str) -> None:
    model = build(name)
    assert model.batch_size == (
        # FlexFlow, section 8.1
        8
        if ZOO[name].task in ("masked", "language") and name != "rnnlm"
        else {"alexnet": 256, "dlrm": 2048, "wide_deep": 512}.get(name, 64)
    )
    assert ZOO[name].description
    assert add_loss(model.graph, model.graph.operators[-1].output, ZOO[name].loss)


def types(graph: Graph) -> dict[str, int]:
    return dict(Counter(op.kind.type for op in graph.operators))


def test_operators_of_the_unrolled_networks() -> None:
    """One a layer and step; as each layer has one set of weights, so has each operator's type."""
    assert types(build("nmt").graph) == {
        "embedding": 80,
        "lstm": 160,
        "luong_attention": 40,
        "dense": 40,
        "concat": 2,
        "softmax": 1,
    }
    assert len(build("nmt").graph.weights) == 2 + 4 * 3 + 2 + 2
    assert types(build("rnnlm").graph) == {
        "embedding": 40,
        "lstm": 80,
        "dense": 40,
        "concat": 1,
        "softmax": 1,
    }
    # The variant of FlexFlow's section 8.4.
    assert types(build("rnnlm", steps=2).graph)["lstm"] == 4
    assert types(build("rnntc").graph) == {"embedding": 40, "lstm": 160, "dense": 1, "softmax": 1}


@pytest.mark.parametrize("name", ["nmt", "rnnlm", "rnntc"])
def test_grouped_steps(name: str) -> None:
    """Groups of 16 of 40 steps are 16, 16 and 8; weights and output are those of single steps."""
    one, groups = build(name, 2), build(name, 2, steps_per_op=16)
    assert types(groups.graph)["embedding"] * 40 == types(one.graph)["embedding"] * 3
    lstm = [op for op in groups.graph.operators if op.kind.type == "lstm"]
    assert [op.output.shape[1] for op in lstm[:3]] == [16, 16, 8]
    assert [t.shape for t in groups.graph.weights] == [t.shape for t in one.graph.weights]
    assert groups.graph.operators[-1].output.shape == one.graph.operators[-1].output.shape
    whole = build(name, 2, steps_per_op=100)
    assert "concat" not in types(whole.graph)
    products = [
        sum(op.kind.flops(op.input_shapes) for op in model.graph.operators)
        for model in (one, groups, whole)
    ]
    assert products[0] == products[1] == products[2]


def test_layers_of_inception_and_resnet() -> None:
    inception = types(build("inception_v3").graph)
    assert inception["conv2d"] == inception["batch_norm"] == 94
    assert inception["batch_norm_statistics"] == inception["batch_norm_moments"] == 94
    # 14 poolings (2 in the stem, 1 in each of the 11 modules, 1 at the end) and 11 concatenations;
    # flatten, dropout, dense and softmax.
    assert sum(inception.values()) == 4 * 94 + 14 + 11 + 4
    graph = build("inception_v3").graph
    shapes = {op.name: op.output.shape[1:] for op in graph.operators}
    # Table 1 of the paper, and its figures.
    assert shapes["stem.pool2"] == (35, 35, 192)
    assert shapes["a3.concat"] == (35, 35, 288)
    assert shapes["reduce_a.concat"] == shapes["b4.concat"] == (17, 17, 768)
    assert shapes["reduce_b.concat"] == (8, 8, 1280)
    assert shapes["c2.concat"] == (8, 8, 2048)
    resnet = types(build("resnet101").graph)
    assert resnet["conv2d"] == 1 + 3 * 33 + 4  # 100 convolutions and a dense layer; projections
    blocks = [op for op in build("resnet101").graph.operators if len(op.inputs) == 3]
    assert {op.kind.type for op in blocks} == {"batch_norm"}  # which add their blocks' shortcuts
    assert len(blocks) == 33
    assert not resnet.keys() & {"add", "relu"}


def test_unfit_data_are_refused() -> None:
    with pytest.raises(UserError, match=r"alexnet takes images .* have shape \[8, 8, 1\]"):
        build("alexnet", 2, (8, 8, 1))
    with pytest.raises(UserError, match=r"inception_v3 takes images .* 75x75 .* \[74, 99, 3\]"):
        build("inception_v3", 2, (74, 99, 3))
    with pytest.raises(UserError, match="resnet101 takes images"):
        build("resnet101", 2, (8,))
    with pytest.raises(UserError, match=r"vgg16 takes images .* at least 32x32 .* \[31, 99, 3\]"):
        build("vgg16", 2, (31, 99, 3))
    with pytest.raises(UserError, match="insightface takes images"):
        build("insightface", 2, (8, 8, 1))
    with pytest.raises(
        UserError,
        match=r"model 'nmt' does not take data of shape \[8, 8, 1\]; its inputs follow from its "
        "sizes steps, layers, hidden, embedding, vocabulary, steps_per_op",
    ):
        build("nmt", 2, (8, 8, 1), 10)


@pytest.mark.parametrize(
    ("name", "sizes", "text"),
    [
        ("nmt", {"depth": 3}, "model 'nmt' has no size 'depth'; it has steps, layers, hidden,"),
        ("rnnlm", {"classes": 3}, "model 'rnnlm' has no size 'classes'; it has steps,"),
        ("lenet", {"steps": 3}, "model 'lenet' has no size 'steps'; it has input_shape, classes"),
        ("nmt", {"steps": 0}, "nmt: steps has to be a whole number of at least 1, not 0"),
        ("nmt", {"steps_per_op": 1.5}, "nmt: steps_per_op has to be a whole number"),
        ("rnntc", {"hidden": True}, "rnntc: hidden has to be a whole number"),
        ("transformer", {"heads": 5}, "5 does not divide 768"),
        (
            "gpt",
            {"preset": "1.3"},
            "unknown preset '1.3' (did you mean '1.3b'?); choose",
        ),
        (
            "moe",
            {"chosen": 9},
            "moe: chosen has to be at most experts, 8, and capacity from",
        ),
        ("moe", {"kv_heads": 5}, "moe: 12 heads have to share 5 kv_heads evenly, and a head has"),
        ("moe", {"every": 0}, "moe: every has to be a whole number of at least 1, not 0"),
        ("mixtral", {"chosen": 9}, "mixtral: chosen has to be at most experts, 8, and capacity"),
        ("mixtral", {"preset": "8x8b"}, "unknown preset '8x8b' (did you mean '8x7b'"),
        ("llama", {"preset": "3-405b"}, "unknown preset '3-405b' (did you mean '3.1-405b'?)"),
        ("llama", {"hidden": 4095}, "llama: hidden has to be a multiple of heads, but 32 does"),
        ("llama", {"ffn": 0}, "llama: ffn has to be a whole number of at least 1, not 0"),
        (
            "insightface",
            {"backbone": "ir34"},
            "unknown backbone 'ir34'; choose one of resnet50, ir50",
        ),
        ("dlrm", {"tables": (3, 4)}, "dlrm: tables has to say the rows of 26 tables, one for each"),
        (
            "dlrm",
            {"fields": 1, "tables": (0,)},
            "dlrm: tables[0] has to be a whole number of at le",
        ),
        ("dlrm", {"bottom": ()}, "dlrm: bottom has to have a layer, whose units are the tables'"),
        ("wide_deep", {"wide_fields": 0}, "wide_deep: wide_fields has to be a whole number of at"),
        (
            "wide_deep",
            {"wide_rows": 0},
            "wide_deep: wide_rows has to be a whole number of at least",
        ),
        ("wide_deep", {"tables": 4}, "tables, but 4 does not divide 26"),
        ("bert", {"preset": "base", "heads": 5}, "bert: hidden has to be a multiple of heads, but"),
        ("inception_v3", {"depth_multiplier": 0}, "depth_multiplier has to be above 0"),
        ("resnet101", {"blocks": (1, 0)}, "blocks[1] has to be a whole number"),
        (
            "resnet50",
            {"blocks": ()},
            "resnet50: blocks has to name the blocks of one stage or more",
        ),
        ("resnet152", {"width_factor": 0}, "width_factor has to be a whole number of at least 1"),
        (
            "vit",
            {"preset": "b16"},
            "unknown preset 'b16' (did you mean 'b-16'?); choose one of b-16",
        ),
        (
            "vit",
            {"patch": 15},
            "vit takes images (height, width, channel) of 15x15 patches, but the",
        ),
        (
            "vit",
            {"heads": 7},
            "vit: hidden has to be a multiple of heads, but 7 does not divide 768",
        ),
        ("vgg16", {"hidden": 0}, "vgg16: hidden has to be a whole number of at least 1, not 0"),
    ],
)
def test_sizes_are_checked(name: str, sizes: dict[str, object], text: str) -> None:
    with pytest.raises(UserError) as e:
        build(name, 2, **sizes)
    assert text in str(e.value)


# Every network in small, where that is not its nature, under random strategies

_TRANSFORMER: dict[str, object] = {
    "steps": 6,
    "layers": 2,
    "hidden": 6,
    "heads": 3,
    "vocabulary": 11,
}
_GROUPED: dict[str, object] = {**_TRANSFORMER, "kv_heads": 1, "ffn": 4}
SMALL: dict[str, dict[str, object]] = {
    "dlrm": {"numbers": 3, "fields": 3, "rows": 11, "bottom": (5, 3), "top": (4,)},
    "alexnet": {"input_shape": (67, 67, 3), "classes": 5},
    "inception_v3": {"input_shape": (75, 75, 3), "classes": 5, "depth_multiplier": 0.02},
    "insightface": {
        "input_shape": (32, 32, 3),
        "classes": 7,
        "blocks": (1, 1),
        "width": 3,
        "embedding": 5,
    },
    "llama": _GROUPED,
    "mixtral": {**_GROUPED, "experts": 3},
    "moe": {
        **_GROUPED,
        "kv_heads": 3,
        "every": 2,
        "experts": 3,
        "experts_per_op": 2,
        "capacity": 1.5,
    },
    "nmt": {"steps": 3, "hidden": 6, "embedding": 5, "vocabulary": 11},
    "resnet101": {"input_shape": (32, 32, 3), "classes": 5, "blocks": (2, 1, 2), "width": 3},
    "resnet152": {"input_shape": (32, 33, 1), "classes": 5, "blocks": (1, 2), "width": 3},
    "resnet50": {
        "input_shape": (32, 32, 3),
        "classes": 5,
        "blocks": (1, 2),
        "width": 2,
        "width_factor": 2,
    },
    "vit": {
        "input_shape": (8, 12, 3),
        "classes": 5,
        "patch": 4,
        "layers": 2,
        "hidden": 6,
        "heads": 3,
    },
    "vgg16": {"input_shape": (33, 32, 3), "classes": 5, "width": 2, "hidden": 6},
    "rnnlm": {"steps": 3, "hidden": 6, "vocabulary": 11},
    "rnntc": {"steps": 3, "hidden": 6, "embedding": 5, "vocabulary": 11},
    "wide_deep": {
        "numbers": 3,
        "fields": 4,
        "rows": 11,
        "tables": 2,
        "embedding": 3,
        "layers": 2,
        "hidden": 6,
    },
    "bert": _TRANSFORMER,
    "gpt": _TRANSFORMER,
    "transformer": _TRANSFORMER,
}


@pytest.mark.parametrize("strategy", ["data", "model", *(f"random:{i}" for i in range(4))])
@pytest.mark.parametrize("name", [name for name in ZOO if name != "alexnet"])
def test_plans(name: str, strategy: str) -> None:
    plan = zoo_plan(name, strategy, **SMALL.get(name, {}))
    for check in CHECKS:
        check(plan)


@pytest.mark.parametrize("strategy", ["data", "random:1", "random:2"])
@pytest.mark.parametrize("name", ["nmt", "rnnlm", "rnntc"])
def test_plans_of_grouped_steps(name: str, strategy: str) -> None:
    plan = zoo_plan(name, strategy, **SMALL[name], steps_per_op=2)
    for check in CHECKS:
        check(plan)


def test_building_is_fast() -> None:
    """A graph of 324 operators, and its plan for four devices; both take some hundredths."""
    started = time.process_time()
    model = build("nmt")
    assert time.process_time() - started < 1
    output = model.graph.operators[-1].output
    graph = add_loss(model.graph, output, ZOO["nmt"].loss)
    devices = Devices.of(cpus=4)
    strategy = resolve("data", graph, devices)
    started = time.process_time()
    assert len(Plan(strategy, output, 1).launches) > 500
    assert time.process_time() - started < 5


def test_building_the_largest_is_fast() -> None:
    """GPT-3 of 175 billion weights, and its plan for eight devices; both take about a second."""
    started = time.process_time()
    model = build("gpt", 8, preset="175b")
    devices = Devices.of(gpus=8)
    output = model.graph.operators[-1].output
    graph = add_loss(model.graph, output, ZOO["gpt"].loss)
    assert len(Plan(resolve("data", graph, devices), output, 1).launches) > 2000
    assert time.process_time() - started < 10


def test_names_are_found_after_a_copy() -> None:
    model = Model(2)
    x = model.dense(model.input((3,), name="x"), 2, name="d")
    copy = model.graph.copy()
    assert copy.has("x")
    assert copy.has("d")
    copy.add(x.producer.kind, [x], "e")  # type: ignore[union-attr]
    assert copy.has("e")
    assert not model.graph.has("e")
