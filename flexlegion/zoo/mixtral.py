"""The language models Mixtral 8x7B and 8x22B (Jiang et al. 2024), by preset.

Pre-normalised blocks of causal attention with rotary positions, whose queries share keys and values
in groups, and of gated experts (SwiGLU), of which a router chooses two for each token; their gates
are a softmax over their scores. No token is dropped unless a capacity is asked for, and there is no
loss that balances the experts' loads. Attention sees all that comes before, without a window.
"""

from __future__ import annotations

from flexlegion.model.model import Model
from flexlegion.zoo.blocks import chosen_sizes, presets_of
from flexlegion.zoo.moe import mixture

# 8x7b: Jiang et al., Table 1; 8x22b as it was released (Mistral AI 2024).
PRESETS = presets_of(
    "layers hidden heads kv_heads ffn experts chosen vocabulary",
    {
        "8x7b": (32, 4096, 32, 8, 14_336, 8, 2, 32_000),
        "8x22b": (56, 6144, 48, 8, 16_384, 8, 2, 32_000),
    },
)


def mixtral(
    model: Model,
    *,
    preset: str = "8x7b",
    steps: int = 4096,
    layers: int | None = None,
    hidden: int | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    ffn: int | None = None,
    experts: int | None = None,
    chosen: int | None = None,
    experts_per_op: int | None = None,
    capacity: float = 0.0,
    vocabulary: int | None = None,
) -> None:
    """Add the layers; the input is tokens (steps), the output a distribution for each step.

    Sizes that are not given are the preset's.

    Parameters
    ----------
    model
        Where to.
    preset
        A published size: 8x7b (46.7 billion weights, of which a token uses 12.9) or 8x22b (141 and
        39 billion).
    steps
        Length of a sequence; 8x7b can be given up to 32,768.
    layers
        Blocks.
    hidden, heads
        Width of the blocks, a multiple of their number of heads.
    kv_heads
        Heads of keys and values, each for as many heads of queries.
    ffn
        Width between the layers of an expert.
    experts, chosen
        Of each block; and how many of them compute a token.
    experts_per_op, capacity
        As of `moe`: how many experts make an operator, all unless given; and a bound on the tokens
        that an expert takes, 0 for none.
    vocabulary
        Number of tokens.
    """
    sizes = chosen_sizes(
        PRESETS,
        preset,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        ffn=ffn,
        experts=experts,
        chosen=chosen,
        vocabulary=vocabulary,
    )
    mixture(
        model,
        "mixtral",
        every=1,
        gated=True,
        capacity=capacity,
        experts_per_op=experts_per_op,
        steps=steps,
        **sizes,
    )
