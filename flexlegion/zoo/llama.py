"""The language models Llama 2 (Touvron et al. 2023) and Llama 3 (Grattafiori et al. 2024), by size.

Pre-normalised blocks of causal attention with rotary positions, whose queries share keys and values
where a preset has fewer kv_heads than heads, and of a gated network (SwiGLU); an output layer of
its own; trained to predict the next token at every position. Code Llama's 34 billion (Roziere et
al. 2023) and TinyLlama (Zhang et al. 2024) are of the same kind. Queries, keys and values have a
matrix each, as gate and up have. Llama 3.1's rotary positions are those of its pre-training, which
the later stages for longer texts scale; a sequence is one document, so that nothing is masked but
what comes later.
"""

from __future__ import annotations

from flexlegion.graph.tensor import Tensor
from flexlegion.model.model import Model
from flexlegion.zoo.blocks import chosen_sizes, presets_of
from flexlegion.zoo.rotary import decoder, gated_network
from flexlegion.zoo.unrolled import positive

# Llama 2: Touvron et al., Table 1; Code Llama before it was trained on longer texts; Llama 3:
# Grattafiori et al., Table 3. Steps are those of pre-training; of the rates of rotary positions,
# the last pair's is about one over `slowest`.
PRESETS = presets_of(
    "layers hidden heads kv_heads ffn vocabulary steps slowest",
    {
        "tinyllama": (22, 2048, 32, 4, 5632, 32_000, 2048, 10_000),
        "2-7b": (32, 4096, 32, 32, 11_008, 32_000, 4096, 10_000),
        "2-13b": (40, 5120, 40, 40, 13_824, 32_000, 4096, 10_000),
        "34b": (48, 8192, 64, 8, 22_016, 32_000, 4096, 10_000),
        "2-70b": (80, 8192, 64, 8, 28_672, 32_000, 4096, 10_000),
        "3-8b": (32, 4096, 32, 8, 14_336, 128_256, 8192, 500_000),
        "3-70b": (80, 8192, 64, 8, 28_672, 128_256, 8192, 500_000),
        "3.1-405b": (126, 16_384, 128, 8, 53_248, 128_256, 8192, 500_000),
    },
)


def llama(
    model: Model,
    *,
    preset: str = "2-7b",
    steps: int | None = None,
    layers: int | None = None,
    hidden: int | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    ffn: int | None = None,
    vocabulary: int | None = None,
) -> None:
    """Add the layers; the input is tokens (steps), the output a distribution for each step.

    Sizes that are not given are the preset's.

    Parameters
    ----------
    model
        Where to.
    preset
        A published size by its number of weights: Llama 2's 2-7b, 2-13b and 2-70b; 34b, which is
        Code Llama's; Llama 3's 3-8b, 3-70b and 3.1-405b; tinyllama, of 1.1b.
    steps
        Length of a sequence.
    layers
        Blocks.
    hidden, heads
        Width of the blocks, a multiple of their number of heads.
    kv_heads
        Heads of keys and values, each for as many heads of queries.
    ffn
        Width between the layers of the gated network.
    vocabulary
        Number of tokens.
    """
    sizes = chosen_sizes(
        PRESETS,
        preset,
        steps=steps,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        ffn=ffn,
        vocabulary=vocabulary,
    )
    width = sizes.pop("ffn")
    positive("llama", ffn=width)

    def feed_forward(x: Tensor, layer: int) -> list[Tensor]:
        return [gated_network(model, x, width, f"block{layer}")]

    decoder(model, "llama", feed_forward, **sizes)
