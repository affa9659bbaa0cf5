"""Ready-made networks: each is a function, in a module of its name, that uses the layer API.

Modules are imported when their networks are built, so that the list alone takes no time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from flexlegion.base.errors import UserError
from flexlegion.base.suggestions import unknown

if TYPE_CHECKING:
    from flexlegion.model.model import Model


@dataclass(frozen=True)
class ZooEntry:
    """A network with its defaults.

    Parameters
    ----------
    name
        Of the network, of its module and of its function.
    description
        One line.
    batch_size
        Samples an iteration, as in FlexFlow's evaluation (section 8.1) for its networks.
    loss
        What it is trained with.
    task
        What it does, which decides how its data are read: one of `flexlegion.data.tasks.TASKS`.
    sample_sizes
        Sizes that differ for the small sample data that come with flexlegion.
    """

    name: str
    description: str
    batch_size: int = 64
    loss: str = "sparse_categorical_crossentropy"
    task: str = "images"
    sample_sizes: dict[str, Any] = field(default_factory=dict)

    @property
    def build(self) -> Callable[..., None]:
        """Adds the layers to a model: ``build(model, **sizes)``."""
        function: Callable[..., None] = getattr(self._module, self.name)
        return function

    @property
    def sizes(self) -> dict[str, Any]:
        """Its sizes, which `build` takes as keywords, and their defaults."""
        _model, *sizes = inspect.signature(self.build).parameters.values()
        return {size.name: size.default for size in sizes}

    def sizes_with(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All sizes, some of which are given; those that are left to a preset are the preset's.

        Raises
        ------
        UserError
            If there is no such preset.
        """
        sizes = self.sizes | dict(given)
        if "preset" not in sizes:
            return sizes
        from flexlegion.zoo.blocks import chosen_sizes

        left = [name for name, size in sizes.items() if size is None]
        published = chosen_sizes(self._module.PRESETS, sizes["preset"])
        return sizes | {name: published[name] for name in left if name in published}

    @property
    def _module(self) -> Any:
        return import_module(f"flexlegion.zoo.{self.name}")


# For the samples.
_RESIDUAL = {"input_shape": (32, 32, 1), "width": 16}
_TRANSFORMER = {"steps": 32, "layers": 2, "hidden": 128, "heads": 4, "vocabulary": 5000}
_GROUPED = _TRANSFORMER | {"kv_heads": 2, "ffn": 256}

_NETWORKS = (
    ZooEntry(
        "alexnet",
        "12-layer CNN for images of 224x224 pixels",
        256,
        sample_sizes={"input_shape": (64, 64, 1)},
    ),
    ZooEntry(
        "bert",
        "masked language model: BERT, base or large",
        8,
        task="masked",
        sample_sizes=_TRANSFORMER,
    ),
    ZooEntry(
        "dlrm",
        "click-through rates: DLRM of MLPerf, products of categories' vectors",
        2048,
        "binary_crossentropy",
        task="clicks",
        sample_sizes={"rows": 1000, "bottom": (64, 16), "top": (64,)},
    ),
    ZooEntry(
        "gpt",
        "language model: GPT-2 and GPT-3 from 117m to 175b weights, by preset",
        8,
        task="language",
        sample_sizes=_TRANSFORMER,
    ),
    ZooEntry(
        "inception_v3",
        "102-layer CNN with inception modules",
        sample_sizes={"input_shape": (75, 75, 1), "depth_multiplier": 0.25},
    ),
    ZooEntry(
        "insightface",
        "face recognition: ResNet-50, IR-50 or IR-100, and a margin softmax over the persons",
        loss="arcface",
        sample_sizes={"input_shape": (32, 32, 1), "width": 16, "embedding": 64},
    ),
    ZooEntry("lenet", "6-layer CNN for small images"),
    ZooEntry(
        "llama",
        "language model: Llama 2 and 3, Code Llama and TinyLlama, by preset",
        8,
        task="language",
        sample_sizes=_GROUPED,
    ),
    ZooEntry(
        "mixtral",
        "language model: Mixtral 8x7B and 8x22B, mixtures of experts, by preset",
        8,
        task="language",
        sample_sizes=_GROUPED,
    ),
    ZooEntry("mlp", "dense layers"),
    ZooEntry(
        "moe",
        "language model: transformer with a mixture of experts, as Mixtral",
        8,
        task="language",
        sample_sizes=_GROUPED,
    ),
    ZooEntry(
        "nmt",
        "translation: LSTM encoder and decoder with attention, unrolled",
        task="translation",
        sample_sizes={"steps": 12, "layers": 1, "hidden": 128, "embedding": 128},
    ),
    ZooEntry(
        "resnet101",
        "101-layer residual CNN with shortcut connections",
        sample_sizes=_RESIDUAL,
    ),
    ZooEntry(
        "resnet152",
        "152-layer residual CNN with shortcut connections",
        sample_sizes=_RESIDUAL,
    ),
    ZooEntry(
        "resnet50",
        "50-layer residual CNN with shortcut connections",
        sample_sizes=_RESIDUAL,
    ),
    ZooEntry(
        "rnnlm",
        "language model: 2 LSTM layers, unrolled",
        task="language",
        sample_sizes={"steps": 20, "hidden": 128, "vocabulary": 5000},
    ),
    ZooEntry(
        "rnntc",
        "text classification: 4 LSTM layers, unrolled",
        task="text",
        sample_sizes={"steps": 20, "layers": 2, "hidden": 64, "embedding": 64},
    ),
    ZooEntry(
        "transformer",
        "language model: transformer of GPT-2's small sizes",
        8,
        task="language",
        sample_sizes=_TRANSFORMER,
    ),
    ZooEntry(
        "vgg16",
        "16-layer CNN of 3x3 convolutions",
        sample_sizes={"input_shape": (32, 32, 1), "width": 16, "hidden": 256},
    ),
    ZooEntry(
        "vit",
        "vision transformer for images: ViT-B/16, ViT-L/16 and ViT-H/14, by preset",
        sample_sizes={
            "input_shape": (32, 32, 1),
            "patch": 4,
            "layers": 2,
            "hidden": 64,
            "heads": 4,
        },
    ),
    ZooEntry(
        "wide_deep",
        "click-through rates: Wide & Deep, over tables of categories",
        512,
        "binary_crossentropy",
        task="clicks",
        sample_sizes={"rows": 1000, "layers": 2, "hidden": 64},
    ),
)
ZOO: dict[str, ZooEntry] = {entry.name: entry for entry in _NETWORKS}


def build(
    name: str,
    batch_size: int | None = None,
    input_shape: tuple[int, ...] | None = None,
    classes: int | None = None,
    seed: int = 0,
    **sizes: Any,
) -> Model:
    """A network of the zoo, not yet compiled.

    Parameters
    ----------
    name
        For example ``lenet``.
    batch_size
        Samples an iteration; the literature's unless given.
    input_shape, classes
        To fit other data than the literature's, where the network has these sizes.
    seed
        Seed of the model.
    **sizes
        The network's other sizes (`ZooEntry.sizes`), for example ``steps=2``.

    Returns
    -------
    Model
        With all layers.

    Raises
    ------
    UserError
        If there is no such network or size, or it does not fit the input.
    """
    if name not in ZOO:
        raise unknown("model", name, ZOO)
    entry = ZOO[name]
    known = entry.sizes
    if input_shape is not None and "input_shape" not in known:
        raise UserError(
            f"model '{name}' does not take data of shape {list(input_shape)}; "
            f"its inputs follow from its sizes {', '.join(known)}"
        )
    given = {"input_shape": input_shape, "classes": classes}
    sizes |= {size: value for size, value in given.items() if value is not None}
    for size in sizes:
        if size not in known:
            raise UserError(f"model '{name}' has no size '{size}'; it has {', '.join(known)}")
    from flexlegion.model.model import Model

    model = Model(entry.batch_size if batch_size is None else batch_size, seed)
    model.loss = entry.loss
    entry.build(model, **sizes)
    return model
