"""Layers among the operations of `module_grammar`."""

from __future__ import annotations

from math import prod

from module_grammar import Program
from module_operations import OPERATIONS, operation

__all__ = ["OPERATIONS"]


# Layers.


@operation
def linear(p: Program) -> None:
    x = p.pick(lambda v: v.shape != ())
    units = p.rng.choice([1, 2, 3, 4, 6])
    bias = p.rng.choice(["", ", bias=False"])
    p.let(f"{p.part(f'nn.Linear({x.shape[-1]}, {units}{bias})')}({x.name})", (*x.shape[:-1], units))


@operation
def shared(p: Program) -> None:
    """One layer, called twice."""
    x = p.pick(lambda v: v.shape != ())
    layer = p.part(f"nn.Linear({x.shape[-1]}, {x.shape[-1]})")
    p.let(f"{layer}(torch.tanh({layer}({x.name})))", x.shape)


@operation
def tied(p: Program) -> None:
    x = p.pick(lambda v: v.shape != ())
    layer = p.part(f"nn.Linear({x.shape[-1]}, 3)")
    p.let(f"torch.tanh({layer}({x.name})) @ {layer}.weight", x.shape)


@operation
def normalised(p: Program) -> None:
    x = p.pick(lambda v: v.shape != () and v.shape[-1] > 1)
    c = x.shape[-1]
    text = p.rng.choice(
        [
            f"nn.LayerNorm({c})",
            f"nn.LayerNorm({c}, elementwise_affine=False)",
            f"nn.LayerNorm({c}, eps=1e-2)",
            f"nn.RMSNorm({c}, eps=1e-5)",
            f"nn.LayerNorm({list(x.shape[-2:])})",
            f"nn.LayerNorm({list(x.shape)})",
            f"nn.RMSNorm({list(x.shape[-2:])}, eps=1e-2)",
        ]
    )
    p.let(f"{p.part(text)}({x.name})", x.shape)


@operation
def functional_norm(p: Program) -> None:
    x = p.pick(lambda v: v.shape != () and v.shape[-1] > 1)
    a = p.axis(x)
    text = p.rng.choice(
        [
            f"F.normalize({x.name}, dim={a}, eps=1e-3)",
            f"{x.name} / ({x.name}.norm(dim={a}, keepdim=True) + 1)",
            f"({x.name} - {x.name}.mean(-1, keepdim=True)) * torch.rsqrt("
            f"{x.name}.var(-1, keepdim=True, unbiased=False) + 0.1)",
            f"F.layer_norm({x.name}, {x.name}.shape[-1:])",
            f"{x.name} * torch.rsqrt({x.name}.pow(2).mean(-1, keepdim=True) + 1e-3)",
            f"torch.linalg.vector_norm({x.name}, dim={a}, keepdim=True) + {x.name}",
            f"{x.name} / {x.name}.std(-1, keepdim=True).clamp(min=0.5)",
        ]
    )
    p.let(text, x.shape)


@operation
def batch_norm(p: Program) -> None:
    x = p.ranked(2, 3, 4)
    kind = "nn.BatchNorm2d" if x.rank == 4 else "nn.BatchNorm1d"
    options = p.rng.choice(["", "", ", eps=0.1", ", momentum=0.3", ", affine=False"])
    if p.rng.random() < 0.15:
        options = ", track_running_stats=False"
    p.let(f"{p.part(f'{kind}({x.shape[0]}{options})')}({x.name})", x.shape)


@operation
def group_norm(p: Program) -> None:
    x = p.pick(lambda v: v.rank in (3, 4) and v.shape[-1] * v.shape[0] > 1)
    groups, _ = p.factors(x.shape[0])
    text = f"nn.GroupNorm({groups}, {x.shape[0]})"
    if p.rng.random() < 0.3 and prod(x.shape[1:]) > 1:
        kind = f"nn.InstanceNorm{x.rank - 2}d"
        text = f"{kind}({x.shape[0]}{p.rng.choice(['', ', affine=True'])})"
    p.let(f"{p.part(text)}({x.name})", x.shape)


@operation
def convolution(p: Program) -> None:
    x = p.ranked(3, 4)
    c, *space = x.shape
    out = p.rng.choice([1, 2, 4])
    kernel = p.rng.choice([1, 2, 3])
    padding, stride = p.rng.choice([0, 1]), p.rng.choice([1, 1, 2])
    if kernel == 1:
        padding = 0
    dilation = p.rng.choice([1, 1, 2])
    span = (kernel - 1) * dilation + 1
    sizes = [(e + 2 * padding - span) // stride + 1 for e in space]
    if min(sizes) < 1 or min(space) + 2 * padding < span:
        return
    groups = p.rng.choice([1, 1, c]) if out % c == 0 else 1
    more = f", groups={groups}" if groups > 1 else ""
    more += f", dilation={dilation}" if dilation > 1 else ""
    kind = f"nn.Conv{x.rank - 2}d"
    text = f"{kind}({c}, {out}, {kernel}, stride={stride}, padding={padding}{more})"
    p.let(f"{p.part(text)}({x.name})", (out, *sizes))


@operation
def transposed_convolution(p: Program) -> None:
    x = p.ranked(3, 4)
    c, *space = x.shape
    text = f"nn.ConvTranspose{len(space)}d({c}, 2, 2, stride=2)"
    p.let(f"{p.part(text)}({x.name})", (2, *(2 * e for e in space)))


@operation
def pooling(p: Program) -> None:
    x = p.pick(lambda v: v.rank == 4 and min(v.shape[1:]) > 1)
    c, h, w = x.shape
    text, size = p.rng.choice(
        [
            ("F.max_pool2d({}, 2)", (h // 2, w // 2)),
            ("F.avg_pool2d({}, 2)", (h // 2, w // 2)),
            ("F.avg_pool2d({}, 2, 1, 1, count_include_pad=False)", (h + 1, w + 1)),
            ("F.max_pool2d({}, 2, 1, 1)", (h + 1, w + 1)),
            ("F.avg_pool2d({}, 2, divisor_override=3)", (h // 2, w // 2)),
            ("F.max_pool2d({}, 2, ceil_mode=True)", (-(-h // 2), -(-w // 2))),
            ("F.avg_pool2d({}, 2, ceil_mode=True)", (-(-h // 2), -(-w // 2))),
            ("F.adaptive_avg_pool2d({}, 1)", (1, 1)),
            ("F.adaptive_max_pool2d({}, 1)", (1, 1)),
            ("F.interpolate({}, scale_factor=2.0)", (2 * h, 2 * w)),
            ("F.interpolate({}, scale_factor=2.0, mode='bilinear')", (2 * h, 2 * w)),
            ("F.pixel_unshuffle(F.interpolate({}, scale_factor=2.0), 2)", None),
        ]
    )
    p.let(text.format(x.name), (4 * c, h, w) if size is None else (c, *size))


@operation
def shuffled(p: Program) -> None:
    x = p.ranked(3, 4)
    groups, _ = p.factors(x.shape[0])
    p.let(f"F.channel_shuffle({x.name}, {groups})", x.shape)


@operation
def dropped_features(p: Program) -> None:
    x = p.pick(lambda v: v.rank > 2)
    p.let(f"{p.part('nn.Dropout2d(0.4)')}({x.name})", x.shape)


@operation
def dropped(p: Program) -> None:
    x = p.pick()
    text = p.rng.choice(
        ["nn.Dropout(0.5)", "nn.Dropout(0.2, inplace=False)", "nn.Identity()", "nn.Dropout(0.0)"]
    )
    p.let(f"{p.part(text)}({x.name})", x.shape)


@operation
def softmaxes(p: Program) -> None:
    x = p.pick(lambda v: v.shape != ())
    how = p.rng.choice(["softmax", "log_softmax", "softmin"])
    p.let(f"F.{how}({x.name}, dim={p.sign(x, p.axis(x))})", x.shape)


@operation
def glu(p: Program) -> None:
    x = p.pick(lambda v: v.shape != () and v.shape[-1] % 2 == 0)
    p.let(f"F.glu({x.name}, -1)", (*x.shape[:-1], x.shape[-1] // 2))


# Attention and recurrent layers.


@operation
def attention(p: Program) -> None:
    x = p.ranked(3)
    t, c = x.shape
    mask = p.part(f"buffer:torch.ones({t}, {t}).tril().bool()")
    more = p.rng.choice(["", ", is_causal=True", f", attn_mask={mask}", ", scale=0.3"])
    w = p.part(f"nn.Linear({c}, {3 * c})")
    names = p.fresh("q"), p.fresh("k"), p.fresh("w")
    p.do(f"{', '.join(names)} = {w}({x.name}).chunk(3, -1)")
    q, k, v = (f"{name}.unsqueeze(1)" for name in names)
    text = f"F.scaled_dot_product_attention({q}, {k}, {v}{more}).squeeze(1)"
    if c % 2 == 0 and p.rng.random() < 0.6:
        heads = [f"{name}.reshape(x0.shape[0], {t}, 2, {c // 2}).transpose(1, 2)" for name in names]
        inner = f"F.scaled_dot_product_attention({', '.join(heads)}{more})"
        text = f"{inner}.transpose(1, 2).reshape(x0.shape[0], {t}, {c})"
    p.let(text, x.shape)


@operation
def attention_by_hand(p: Program) -> None:
    x = p.ranked(3)
    t, _ = x.shape
    scores = p.let(f"{x.name} @ {x.name}.transpose(-2, -1) * 0.4", (t, t))
    if p.rng.random() < 0.6:
        mask = p.part(f"buffer:torch.triu(torch.ones({t}, {t}, dtype=torch.bool), 1)")
        fill = p.rng.choice(["float('-inf')", "-1e9", "torch.finfo(torch.float32).min"])
        scores = p.let(f"{scores.name}.masked_fill({mask}, {fill})", (t, t))
        p.values.remove(scores)
    p.let(f"{scores.name}.softmax(-1) @ {x.name}", x.shape)


@operation
def multihead(p: Program) -> None:
    x = p.pick(lambda v: v.rank == 3 and v.shape[-1] % 2 == 0)
    y = p.pick(lambda v: v.rank == 3 and v.shape[-1] == x.shape[-1])
    layer = p.part(f"nn.MultiheadAttention({x.shape[-1]}, 2, batch_first=True)")
    need = p.rng.choice(["", ", need_weights=False"])
    p.let(f"{layer}({x.name}, {y.name}, {y.name}{need})[0]", x.shape)


@operation
def recurrent(p: Program) -> None:
    x = p.ranked(3)
    t, c = x.shape
    kind = p.rng.choice(["LSTM", "GRU"])
    both = p.rng.random() < 0.3
    more = ", bidirectional=True" if both else ""
    layer = p.part(f"nn.{kind}({c}, 3, batch_first=True{more})")
    if p.rng.random() < 0.7:
        p.let(f"{layer}({x.name})[0]", (t, 6 if both else 3))
    else:
        state = "[1][0]" if kind == "LSTM" else "[1]"
        p.let(f"{layer}({x.name}){state}[-1]", (3,))


@operation
def cells(p: Program) -> None:
    x = p.ranked(3)
    t, c = x.shape
    kind = p.rng.choice(["LSTM", "GRU", "RNN"])
    cell = p.part(f"nn.{kind}Cell({c}, 3{p.rng.choice(['', ', bias=False'])})")
    state = p.fresh("s")
    p.do(f"{state} = {cell}({x.name}[:, 0])")
    p.do(f"{state} = {cell}({x.name}[:, {t - 1}], {state})")
    p.let(f"{state}[0]" if kind == "LSTM" else f"{state} * 1", (3,))
