"""Reductions, products, look-ups and loops among the operations of `module_grammar`."""

from __future__ import annotations

from module_grammar import Program
from module_layers import OPERATIONS
from module_operations import operation

__all__ = ["OPERATIONS"]


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
