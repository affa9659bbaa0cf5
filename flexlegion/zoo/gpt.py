"""The language models GPT-2 (Radford et al. 2019) and GPT-3 (Brown et al. 2020), by their sizes.

Pre-normalised blocks with causal attention, trained positions, and an output layer that shares the
token embedding's table; trained to predict the next token at every position. Queries, keys and
values have a matrix each, which computes the same as one for all three. There is no dropout
unless it is asked for, and attention is dense in every block, where GPT-3's every other block
attends to a band.
"""

from __future__ import annotations

from flexlegion.model.model import Model
from flexlegion.zoo.blocks import chosen_sizes, presets_of
from flexlegion.zoo.transformer import decoder

# GPT-2's are called by the numbers of weights that were first published; the smallest has 124
# million. GPT-3's are those of Brown et al., Table 2.1, but for the 24 heads of 128 channels that
# it gives a width of 2048, and the width 5140 of its 13 billion.
PRESETS = presets_of(
    "layers hidden heads",
    {
        "117m": (12, 768, 12),
        "345m": (24, 1024, 16),
        "762m": (36, 1280, 20),
        "1.5b": (48, 1600, 25),
        "125m": (12, 768, 12),
        "350m": (24, 1024, 16),
        "760m": (24, 1536, 16),
        "1.3b": (24, 2048, 16),
        "2.7b": (32, 2560, 32),
        "6.7b": (32, 4096, 32),
        "13b": (40, 5120, 40),
        "175b": (96, 12_288, 96),
    },
)


def gpt(
    model: Model,
    *,
    preset: str = "117m",
    steps: int = 1024,
    layers: int | None = None,
    hidden: int | None = None,
    heads: int | None = None,
    vocabulary: int = 50_257,
    dropout: float = 0.0,
) -> None:
    """Add the layers; the input is tokens (steps), the output a distribution for each step.

    Parameters
    ----------
    model
        Where to.
    preset
        A published size by its number of weights: GPT-2's 117m, 345m, 762m and 1.5b; GPT-3's 125m,
        350m, 760m, 1.3b, 2.7b, 6.7b, 13b and 175b.
    steps
        Length of a sequence: 1024 of GPT-2; GPT-3 was trained with 2048.
    layers
        Blocks; the preset's unless given.
    hidden, heads
        Width of the blocks, a multiple of their number of heads; the preset's unless given.
    vocabulary
        Number of tokens.
    dropout
        Share of the embeddings, of attention's weights, and of what each half of a block adds, that
        is dropped in training; 0.1 of GPT-2 and GPT-3.
    """
    sizes = chosen_sizes(PRESETS, preset, layers=layers, hidden=hidden, heads=heads)
    decoder(model, "gpt", "gelu_tanh", steps=steps, vocabulary=vocabulary, dropout=dropout, **sizes)
