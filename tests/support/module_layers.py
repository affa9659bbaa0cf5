"""Layers, reductions, products, look-ups and loops among the operations of `module_grammar`."""

from __future__ import annotations

from module_grammar import Program
from module_operations import OPERATIONS, operation

__all__ = ["OPERATIONS"]


def _channels(p: Program, rank: int) -> tuple[str, tuple[int, ...]]:
    """A value with so many dimensions, as a name and a shape."""
    x = p.ranked(rank)
    return x.name, x.shape


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
    if x.rank == 4 and p.rng.random() < 0.3 and x.shape[1] * x.shape[2] > 1:
        text = f"nn.InstanceNorm2d({x.shape[0]}{p.rng.choice(['', ', affine=True'])})"
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
    sizes = [(e + 2 * padding - kernel) // stride + 1 for e in space]
    if min(sizes) < 1 or min(space) + 2 * padding < kernel:
        return
    groups = p.rng.choice([1, 1, c]) if out % c == 0 else 1
    more = f", groups={groups}" if groups > 1 else ""
    kind = f"nn.Conv{x.rank - 2}d"
    text = f"{kind}({c}, {out}, {kernel}, stride={stride}, padding={padding}{more})"
    p.let(f"{p.part(text)}({x.name})", (out, *sizes))


@operation
def transposed_convolution(p: Program) -> None:
    x = p.ranked(4)
    c, h, w = x.shape
    text = f"nn.ConvTranspose2d({c}, 2, 2, stride=2)"
    p.let(f"{p.part(text)}({x.name})", (2, 2 * h, 2 * w))


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
            ("F.adaptive_avg_pool2d({}, 1)", (1, 1)),
            ("F.adaptive_max_pool2d({}, 1)", (1, 1)),
            ("F.interpolate({}, scale_factor=2.0)", (2 * h, 2 * w)),
            ("F.interpolate({}, scale_factor=2.0, mode='bilinear')", (2 * h, 2 * w)),
            ("F.pixel_unshuffle(F.interpolate({}, scale_factor=2.0), 2)", None),
        ]
    )
    p.let(text.format(x.name), (4 * c, h, w) if size is None else (c, *size))


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


# Reductions.


@operation
def reduced(p: Program) -> None:
    x = p.pick(lambda v: v.shape != ())
    a = p.axis(x)
    keep = p.rng.random() < 0.4
    d = p.sign(x, a)
    options = f"{d}, keepdim={keep}"
    text = p.rng.choice(
        [
            f"{x.name}.sum({options})",
            f"{x.name}.mean({options})",
            f"{x.name}.amax({options})",
            f"{x.name}.amin({options})",
            f"{x.name}.max({options}).values",
            f"{x.name}.min({options})[0]",
            f"{x.name}.logsumexp({options})",
            f"{x.name}.var({options}, unbiased=False)",
            f"({x.name} * 0.5 + 1).prod({options})",
            f"({x.name} > 0).sum({options}).to({x.name}.dtype)",
            f"torch.linalg.vector_norm({x.name} + 1, dim={d}, keepdim={keep})",
            f"{x.name}.abs().sum({options}).sqrt()",
            f"({x.name} > 2).any({options}).float().to({x.name}.dtype) + {x.name}.sum({options})",
        ]
    )
    shape = [1 if i == a - 1 else e for i, e in enumerate(x.shape) if keep or i != a - 1]
    p.let(text, shape)


@operation
def reduced_more(p: Program) -> None:
    x = p.ranked(3, 4)
    dims = sorted(p.rng.sample(range(1, x.rank), 2))
    text = p.rng.choice(["sum", "mean", "amax", "var"])
    more = ", unbiased=False" if text == "var" else ""
    shape = [e for d, e in enumerate(x.shape, 1) if d not in dims]
    p.let(f"{x.name}.{text}({tuple(dims)}{more})", shape)


@operation
def cumulated(p: Program) -> None:
    x = p.pick(lambda v: v.shape != ())
    p.let(f"{x.name}.cumsum({p.axis(x)})", x.shape)


# Products.


@operation
def products(p: Program) -> None:
    x = p.ranked(3)
    t, c = x.shape
    w = p.parameter(c, 2)
    text, shape = p.rng.choice(
        [
            (f"{x.name} @ {w}", (t, 2)),
            (f"torch.matmul({x.name}, {w})", (t, 2)),
            (f"torch.einsum('ntc,cd->ndt', {x.name}, {w})", (2, t)),
            (f"torch.einsum('ntc,nsc->nts', {x.name}, {x.name}) * 0.3", (t, t)),
            (f"torch.bmm({x.name}, {x.name}.transpose(1, 2)) * 0.3", (t, t)),
            (f"torch.einsum('ntc,ntc->nt', {x.name}, {x.name})", (t,)),
            (f"{x.name}.mT @ {x.name} * 0.2", (c, c)),
            (f"torch.tensordot({x.name}, {w}, dims=1)", (t, 2)),
            (f"({x.name}.unsqueeze(-1) * {w}).sum(2)", (t, 2)),
        ]
    )
    p.let(text, shape)


@operation
def outer(p: Program) -> None:
    x = p.ranked(2)
    y = p.ranked(2)
    text = p.rng.choice(
        [
            f"{x.name}.unsqueeze(2) * {y.name}.unsqueeze(1)",
            f"torch.einsum('na,nb->nab', {x.name}, {y.name})",
            f"{x.name}[:, :, None] + {y.name}[:, None, :]",
            f"torch.bmm({x.name}.unsqueeze(2), {y.name}.unsqueeze(1))",
        ]
    )
    p.let(text, (x.shape[0], y.shape[0]))


@operation
def similarity(p: Program) -> None:
    x = p.pick(lambda v: v.shape != ())
    y = p.pick(lambda v: v.shape == x.shape)
    p.let(f"F.cosine_similarity({x.name} + 1, {y.name} + 1, dim=-1)", x.shape[:-1])


# Look-ups.


@operation
def looked_up(p: Program) -> None:
    """Tokens of an input of their own."""
    if any("randint" in text for text in p.source.arguments.values()):
        return
    steps, width = p.rng.choice([1, 3, 4]), p.rng.choice([2, 4])
    name = f"x{len(p.source.arguments)}"
    p.source.arguments[name] = f"torch.randint(0, 7, (n, {steps}))"
    table = p.part(f"nn.Embedding(7, {width})")
    mask = f"({name} > 0)"
    text, shape = p.rng.choice(
        [
            (f"{table}({name})", (steps, width)),
            (f"{table}({name}) * {mask}.unsqueeze(-1)", (steps, width)),
            (f"F.embedding({name}, {table}.weight).mean(1)", (width,)),
            (f"{table}({name}).masked_fill({name}.eq(2).unsqueeze(-1), 0.0)", (steps, width)),
            (f"{table}({name}) + {table}(torch.arange({steps}))", (steps, width)),
            (f"{table}({name}[:, 0])", (width,)),
            (f"{table}({name}) * 2 + {name}.unsqueeze(-1).float().to(x0.dtype)", (steps, width)),
            (f"F.one_hot({name}, 7).to(x0.dtype)", (steps, 7)),
            (f"{table}({name}.clamp(max=3))", (steps, width)),
            (f"{table}({name} % 4)", (steps, width)),
            (f"{table}({name}).sum(1) / {mask}.sum(1, keepdim=True).clamp(min=1)", (width,)),
        ]
    )
    p.let(text, shape)


@operation
def indexed(p: Program) -> None:
    x = p.pick(lambda v: v.shape != ())
    a = p.axis(x)
    numbers = [p.rng.randrange(x.shape[a - 1]) for _ in range(p.rng.choice([1, 2, 3]))]
    index = p.part(f"buffer:torch.tensor({numbers})")
    text = p.rng.choice(
        [
            f"{x.name}{p.index(a, str(numbers))}",
            f"{x.name}.index_select({a}, {index})",
            f"{x.name}{p.index(a, index)}",
            f"torch.take_along_dim({x.name}, {index}.reshape("
            f"{[1] * a + [-1] + [1] * (x.rank - a - 1)}), {a})",
        ]
    )
    p.let(text, (*x.shape[: a - 1], len(numbers), *x.shape[a:]))


@operation
def gathered(p: Program) -> None:
    x = p.ranked(3)
    t, c = x.shape
    text, shape = p.rng.choice(
        [
            (f"{x.name}.gather(1, torch.zeros_like({x.name}[:, :1]).long())", (1, c)),
            (f"{x.name}.gather(2, torch.full(({x.name}.shape[0], {t}, 1), {c - 1}))", (t, 1)),
            (f"{x.name}.topk(1, -1).values", (t, 1)),
            (f"{x.name}.sort(-1).values", (t, c)),
        ]
    )
    p.let(text, shape)


@operation
def mask_input(p: Program) -> None:
    """A mask of truths or numbers, as an input."""
    if any("> 0" in text or "float" in text for text in p.source.arguments.values()):
        return
    x = p.ranked(3)
    t, _ = x.shape
    name = f"x{len(p.source.arguments)}"
    kind = p.rng.choice(["bool", "long", "float"])
    p.source.arguments[name] = f"(torch.randn(n, {t}) > 0).{kind}()"
    keep = f"({name} > 0.5)" if kind != "bool" else name
    text = p.rng.choice(
        [
            f"{x.name}.masked_fill(~{keep}.unsqueeze(-1), 0.0)",
            f"{x.name} * {name}.unsqueeze(-1)",
            f"{x.name} * {name}.unsqueeze(-1).float().to({x.name}.dtype)",
            f"torch.where({keep}[:, :, None], {x.name}, -{x.name})",
            f"{x.name} + (1.0 - {name}[:, :, None].float().to({x.name}.dtype)) * -3.0",
        ]
    )
    p.let(text, x.shape)


# Programs of Python.


@operation
def loop(p: Program) -> None:
    x = p.ranked(3)
    t, c = x.shape
    w = p.parameter(c, c)
    h, steps, i = p.fresh("h"), p.fresh("s"), p.fresh("i")
    start = p.rng.choice(
        [f"{x.name}.new_zeros({x.name}.shape[0], {c})", f"torch.zeros_like({x.name}[:, 0])"]
    )
    p.do(f"{h}, {steps} = {start}, []")
    p.do(f"for {i} in range({x.name}.shape[1]):")
    p.do(f"    {h} = torch.tanh({x.name}[:, {i}] + {h} @ {w})")
    p.do(f"    {steps}.append({h})")
    if p.rng.random() < 0.5:
        p.let(f"torch.stack({steps}, 1)", (t, c))
    else:
        p.let(f"{h} * 1.0", (c,))


@operation
def filled_by_a_loop(p: Program) -> None:
    x = p.ranked(3)
    y = p.let(f"torch.zeros_like({x.name})", x.shape)
    i = p.fresh("i")
    p.do(f"for {i} in range({x.name}.shape[1]):")
    p.do(f"    {y.name}[:, {i}] = {x.name}[:, {i}] * ({i} + 1) * 0.3")


@operation
def buffer_read(p: Program) -> None:
    """Buffers that are used in other ways than as a term."""
    x = p.pick(lambda v: v.shape != ())
    b = p.part("buffer:torch.tensor([0.5, 2.0])")
    count = p.part("buffer:torch.tensor(3)")
    text = p.rng.choice(
        [
            f"{x.name} * {b}[0]",
            f"{x.name} * {b}.sum()",
            f"{x.name} / {count}",
            f"{x.name} * float({b}.numel())",
            f"{x.name} + {b}.max() * {count}",
        ]
    )
    p.let(text, x.shape)


@operation
def not_differentiated(p: Program) -> None:
    x = p.pick()
    y = p.fresh("d")
    text = p.rng.choice([f"{x.name}.detach()", f"{x.name}.data", "no_grad"])
    if text == "no_grad":
        p.do("with torch.no_grad():")
        p.do(f"    {y} = {x.name} * 0.5")
    else:
        p.do(f"{y} = {text}")
    p.let(f"{x.name} + torch.tanh({y})", x.shape)


@operation
def counted(p: Program) -> None:
    """A buffer that the forward pass changes."""
    if p.rng.random() < 0.7:
        return
    x = p.pick()
    b = p.part("buffer:torch.tensor(1.0)")
    p.do(f"{b}.add_(1)" if p.rng.random() < 0.5 else f"{b} += 1")
    p.let(f"{x.name} / {b}", x.shape)


@operation
def training_branch(p: Program) -> None:
    if p.rng.random() < 0.6:
        return
    x = p.pick()
    p.let(f"{x.name} * 2 if self.training else {x.name}", x.shape)
