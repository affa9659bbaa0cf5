"""The operations of `module_grammar`: what a program of PyTorch may compute, one function each."""

from __future__ import annotations

from module_grammar import Operation, Program, Value

OPERATIONS: list[Operation] = []
UNARY = [
    "torch.tanh({})",
    "torch.sigmoid({})",
    "F.relu({})",
    "F.gelu({})",
    "F.silu({})",
    "F.elu({})",
    "F.selu({})",
    "F.hardtanh({})",
    "F.relu6({})",
    "F.hardswish({})",
    "F.leaky_relu({}, 0.2)",
    "F.softplus({})",
    "F.mish({})",
    "F.logsigmoid({})",
    "F.softsign({})",
    "torch.sin({})",
    "torch.cos({})",
    "{}.abs()",
    "{}.square()",
    "-{}",
    "torch.exp(-{}.abs())",
    "torch.log1p({}.abs())",
    "({}.abs() + 0.5).sqrt()",
    "({}.abs() + 0.5).rsqrt()",
    "({}.abs() + 0.5).log()",
    "{}.clamp(-0.5, 0.7)",
    "{}.clamp(min=0.1)",
    "{}.clamp_max(0.4)",
    "torch.erf({})",
    "({}.abs() + 1).reciprocal()",
    "{}.sign() * 0.5",
    "F.gelu({}, approximate='tanh')",
    "{} ** 2",
    "({}.abs() + 0.3) ** 1.5",
    "F.hardsigmoid({})",
    "F.threshold({}, 0.1, -0.2)",
    "F.celu({}, 1.3)",
    "F.softshrink({}, 0.2)",
    "F.hardshrink({}, 0.2)",
    "F.tanhshrink({})",
    "torch.expm1(-{}.abs())",
    "torch.atan({})",
    "{}.round() * 0.1",
    "{}.floor() * 0.1",
    "torch.nan_to_num({})",
    "{}.neg().relu()",
    "{} * 0.5 + 1",
    "2 - {}",
    "1 / ({}.abs() + 1)",
    "{} / 3",
    "{} % 1.5",
    "torch.remainder({}, 0.7)",
    "torch.pow(2.0, -{}.abs())",
    "{}.float().to({}.dtype)",
    "{}.double().to({}.dtype)",
    "{}.contiguous()",
    "{}.type_as({})",
    "F.prelu({}.unsqueeze(1), torch.tensor([0.25], dtype={}.dtype)).squeeze(1)",
    "torch.where({} > 0, {}, 0.1 * {})",
    "{}.masked_fill({} > 0.5, 0.3)",
    "({} > 0).to({}.dtype)",
    "(({} > -0.5) & ({} < 0.5)).float().to({}.dtype) * {}",
    "{} * ({} >= 0)",
    "torch.sinc({})",
]
BINARY = [
    "{0} + {1}",
    "{0} - {1}",
    "{0} * {1}",
    "{0} / ({1}.abs() + 1)",
    "torch.maximum({0}, {1})",
    "torch.minimum({0}, {1})",
    "torch.add({0}, {1}, alpha=0.3)",
    "torch.where({0} > {1}, {0}, {1} * 0.5)",
    "torch.lerp({0}, {1}, 0.3)",
    "torch.addcmul({0}, {1}, {1}, value=0.2)",
    "torch.hypot({0}, {1} + 3)",
    "({0} > {1}).to({0}.dtype) - {0}",
    "torch.sub({0}, {1}, alpha=2)",
    "torch.atan2({0}, {1}.abs() + 1)",
    "torch.rsub({0}, {1})",
    "{0}.add({1}).mul(0.5)",
    "F.mse_loss({0}, {1}, reduction='none')",
    "F.smooth_l1_loss({0}, {1}, reduction='none')",
    "torch.stack([{0}, {1}]).sum(0)",
    "torch.logaddexp({0}, {1})",
    "torch.fmod({0}, {1}.abs() + 1)",
    "torch.xlogy({0}, {1}.abs() + 1)",
]


def operation(function: Operation) -> Operation:
    """Register one."""
    OPERATIONS.append(function)
    return function


# Element by element.


@operation
def unary(p: Program) -> None:
    x = p.pick()
    text = p.rng.choice(UNARY)
    p.let(text.replace("{}", x.name), x.shape)


@operation
def unary_again(p: Program) -> None:
    unary(p)
    unary(p)


@operation
def binary(p: Program) -> None:
    x = p.pick()
    y = p.pick(lambda v: v.shape == x.shape)
    p.let(p.rng.choice(BINARY).format(x.name, y.name), x.shape)


@operation
def broadcast(p: Program) -> None:
    x = p.pick()
    y = p.pick(lambda v: v.rank == x.rank and _broadcasts(v, x))
    shape = tuple(map(max, x.shape, y.shape))
    p.let(p.rng.choice(BINARY[:6]).format(x.name, y.name), shape)


def _broadcasts(a: Value, b: Value) -> bool:
    return all(1 in (m, n) or m == n for m, n in zip(a.shape, b.shape, strict=True))


@operation
def with_parameter(p: Program) -> None:
    x = p.pick()
    shape = x.shape[p.rng.randrange(len(x.shape)) :] if x.shape else ()
    shape = tuple(p.rng.choice([e, e, 1]) for e in shape)
    w = p.parameter(*shape) if shape else p.part("nn.Parameter(torch.tensor(0.7))")
    p.let(p.rng.choice(BINARY[:6]).format(x.name, w), x.shape)


@operation
def with_buffer(p: Program) -> None:
    x = p.pick(lambda v: v.shape != ())
    kind = p.rng.choice(["torch.randn", "torch.ones", "torch.rand"])
    b = p.part(f"buffer:{kind}({', '.join(map(str, x.shape[-2:]))})")
    p.let(p.rng.choice(BINARY[:4]).format(x.name, b), x.shape)


@operation
def with_mask(p: Program) -> None:
    x = p.pick(lambda v: v.shape != ())
    extent = x.shape[-1]
    b = p.part(f"buffer:torch.arange({extent}) % 2 == 0")
    text = p.rng.choice(
        [
            f"{x.name}.masked_fill({b}, 0.0)",
            f"torch.where({b}, {x.name}, {x.name} * 2)",
            f"{x.name} * {b}",
            f"{x.name}.masked_fill(~{b}, -1.0)",
            f"torch.where({b}, 0.5, {x.name})",
            f"{x.name} * (1 - {b}.int())",
            f"{x.name} + {b}.float().to({x.name}.dtype)",
        ]
    )
    p.let(text, x.shape)


# Views.


@operation
def reshaped(p: Program) -> None:
    x = p.pick(lambda v: v.shape != ())
    count = 1
    for extent in x.shape:
        count *= extent
    shape: list[int] = []
    while count > 1 and len(shape) < 2:
        first, count = p.factors(count)
        shape.append(first)
    shape.append(count)
    sizes = ", ".join(map(str, shape))
    text = p.rng.choice(
        [
            f"{x.name}.reshape({x.name}.shape[0], {sizes})",
            f"{x.name}.reshape(-1, {sizes})",
            f"{x.name}.contiguous().view(x0.size(0), {sizes})",
            f"{x.name}.reshape(len({x.name}), {', '.join(map(str, [*shape[:-1], -1]))})",
            f"{x.name}.flatten(1).unflatten(1, ({sizes},))",
        ]
    )
    p.let(text, shape)


@operation
def flattened(p: Program) -> None:
    x = p.pick(lambda v: v.rank > 2)
    a = p.axis(x)
    b = p.rng.randrange(a, x.rank)
    size = 1
    for e in x.shape[a - 1 : b]:
        size *= e
    p.let(f"{x.name}.flatten({a}, {b})", (*x.shape[: a - 1], size, *x.shape[b:]))


@operation
def transposed(p: Program) -> None:
    x = p.pick(lambda v: v.rank > 2)
    a, b = p.axis(x), p.axis(x)
    shape = list(x.shape)
    shape[a - 1], shape[b - 1] = shape[b - 1], shape[a - 1]
    how = p.rng.choice(["transpose", "swapaxes", "swapdims"])
    p.let(f"{x.name}.{how}({p.sign(x, a)}, {p.sign(x, b)})", shape)


@operation
def permuted(p: Program) -> None:
    x = p.pick(lambda v: v.rank > 2)
    order = list(range(1, x.rank))
    p.rng.shuffle(order)
    shape = [x.shape[d - 1] for d in order]
    numbers = ", ".join(map(str, order))
    p.let(
        p.rng.choice(
            [f"{x.name}.permute(0, {numbers})", f"torch.permute({x.name}, (0, {numbers}))"]
        ),
        shape,
    )


@operation
def moved(p: Program) -> None:
    x = p.pick(lambda v: v.rank > 2)
    a, b = p.axis(x), p.axis(x)
    shape = list(x.shape)
    shape.insert(b - 1, shape.pop(a - 1))
    p.let(f"{x.name}.movedim({p.sign(x, a)}, {p.sign(x, b)})", shape)


@operation
def samples_aside(p: Program) -> None:
    """Steps before samples, and back after something."""
    x = p.pick(lambda v: v.rank > 2)
    y = f"{x.name}.transpose(0, 1)"
    inner = p.rng.choice(["torch.tanh({})", "{} * 2", "{} - {}.mean(-1, keepdim=True)"])
    p.let(f"({inner.replace('{}', y)}).transpose(0, 1)", x.shape)


@operation
def unsqueezed(p: Program) -> None:
    x = p.pick(lambda v: v.rank < 5)
    a = p.rng.randint(1, x.rank)
    text = f"{x.name}.unsqueeze({a})"
    if p.rng.random() < 0.3:
        text = f"{x.name}{p.index(a, 'None')}"
    p.let(text, (*x.shape[: a - 1], 1, *x.shape[a - 1 :]))


@operation
def squeezed(p: Program) -> None:
    x = p.pick(lambda v: 1 in v.shape)
    a = p.rng.choice([d for d, e in enumerate(x.shape, 1) if e == 1])
    p.let(f"{x.name}.squeeze({p.sign(x, a)})", (*x.shape[: a - 1], *x.shape[a:]))


@operation
def expanded(p: Program) -> None:
    x = p.pick(lambda v: 1 in v.shape)
    a = p.rng.choice([d for d, e in enumerate(x.shape, 1) if e == 1])
    extent = p.rng.choice([2, 3])
    sizes = ", ".join(str(extent) if d == a else "-1" for d in range(x.rank))
    p.let(f"{x.name}.expand({sizes})", (*x.shape[: a - 1], extent, *x.shape[a:]))


@operation
def repeated(p: Program) -> None:
    x = p.pick(lambda v: v.shape != ())
    a = p.axis(x)
    shape = list(x.shape)
    shape[a - 1] *= 2
    times = ", ".join("2" if d == a else "1" for d in range(x.rank))
    how = p.rng.choice([f"repeat({times})", f"repeat_interleave(2, {a})", f"tile(({times}))"])
    p.let(f"{x.name}.{how}", shape)


@operation
def sliced(p: Program) -> None:
    x = p.pick(lambda v: v.shape != ())
    a = p.axis(x)
    extent = x.shape[a - 1]
    low, high = p.range(extent)
    shape = list(x.shape)
    shape[a - 1] = high - low
    step = p.index(a, f"{low}:{high}")
    text = p.rng.choice([f"{x.name}{step}", f"{x.name}.narrow({a}, {low}, {high - low})"])
    if p.rng.random() < 0.3:
        text, shape[a - 1] = f"{x.name}{p.index(a, '::2')}", -(-extent // 2)
    p.let(text, shape)


@operation
def selected(p: Program) -> None:
    x = p.pick(lambda v: v.shape != ())
    a = p.axis(x)
    i = p.rng.randrange(-x.shape[a - 1], x.shape[a - 1])
    text = p.rng.choice([f"{x.name}{p.index(a, str(i))}", f"{x.name}.select({a}, {i})"])
    p.let(text, (*x.shape[: a - 1], *x.shape[a:]))


@operation
def in_pieces(p: Program) -> None:
    x = p.pick(lambda v: max(v.shape, default=1) > 1)
    a = p.rng.choice([d for d, e in enumerate(x.shape, 1) if e > 1])
    extent = x.shape[a - 1]
    cut = p.rng.randrange(1, extent)
    names = p.fresh("a"), p.fresh("b")
    how = p.rng.choice(["split", "tensor_split", "chunk"])
    if how == "split":
        text, sizes = f"{x.name}.split([{cut}, {extent - cut}], {a})", (cut, extent - cut)
    elif how == "tensor_split":
        text, sizes = f"torch.tensor_split({x.name}, ({cut},), {a})", (cut, extent - cut)
    else:
        each = -(-extent // 2)
        text, sizes = f"{x.name}.chunk(2, {a})", (each, extent - each)
    p.do(f"{', '.join(names)} = {text}")
    for name, size in zip(names, sizes, strict=True):
        p.values.append(Value(name, (*x.shape[: a - 1], size, *x.shape[a:])))
    if p.rng.random() < 0.5:
        p.let(f"torch.cat([{names[1]}, {names[0]}], {a})", x.shape)


@operation
def unbound(p: Program) -> None:
    x = p.pick(lambda v: v.rank > 2)
    a = p.axis(x)
    rest = (*x.shape[: a - 1], *x.shape[a:])
    name = p.fresh("u")
    p.do(f"{name} = {x.name}.unbind({a})")
    p.let(f"{name}[0] + 0.5 * {name}[-1]", rest)


@operation
def joined(p: Program) -> None:
    x = p.pick(lambda v: v.shape != ())
    y = p.pick(lambda v: v.shape == x.shape)
    a = p.axis(x)
    if p.rng.random() < 0.5:
        shape = list(x.shape)
        shape[a - 1] *= 2
        p.let(f"torch.cat([{x.name}, {y.name}], {p.sign(x, a)})", shape)
    else:
        at = p.rng.randint(1, x.rank)
        shape = [*x.shape[: at - 1], 2, *x.shape[at - 1 :]]
        p.let(f"torch.stack([{x.name}, {y.name}], {at})", shape)


@operation
def diagonals(p: Program) -> None:
    x = p.pick(lambda v: v.rank == 3)
    size = min(x.shape)
    p.let(f"torch.diagonal({x.name}, dim1=1, dim2=2)", (size,))


@operation
def flipped(p: Program) -> None:
    x = p.pick(lambda v: v.shape != ())
    a = p.axis(x)
    how = p.rng.choice([f"flip({a})", f"roll(1, {a})", f"roll(-2, {a})", f"flip([{a}])"])
    p.let(f"{x.name}.{how}", x.shape)


@operation
def padded(p: Program) -> None:
    x = p.pick(lambda v: v.shape != ())
    value = p.rng.choice(["", ", value=0.3"])
    shape = (*x.shape[:-1], x.shape[-1] + 3)
    p.let(f"F.pad({x.name}, (1, 2){value})", shape)


@operation
def triangles(p: Program) -> None:
    x = p.pick(lambda v: v.rank == 3)
    p.let(f"{x.name}.{p.rng.choice(['tril', 'triu'])}({p.rng.choice(['', '1', '-1'])})", x.shape)


# Writes in place.


@operation
def written_whole(p: Program) -> None:
    x = p.copy(p.pick())
    text = p.rng.choice(
        [
            "{}.mul_(0.5)|{}.add_(1)|{}.relu_()|{}.clamp_(-1, 1)|{} += 0.3|{} *= 2|F.relu_({})|"
            "{}.sub_(0.2)|{}.div_(3)|{}.neg_()|{}.tanh_()|{}.sigmoid_()|"
            "{}.masked_fill_({} > 0, 0.1)|"
            "{}.copy_({} * 2)|{}.square_()|F.elu({}, inplace=True)|{}[...] = {} + 1|"
            "F.hardtanh({}, inplace=True)|{}[{} > 0] = 0.2|{}.exp_().reciprocal_()|"
            "{}.addcmul_({}, {}, value=0.1)|{}.lerp_({} * 2, 0.5)|{}.pow_(2)|{}.abs_().sqrt_()"
        ][0].split("|")
    )
    p.do(text.replace("{}", x.name))


@operation
def written_part(p: Program) -> None:
    x = p.copy(p.pick(lambda v: v.shape != ()))
    a = p.axis(x)
    extent = x.shape[a - 1]
    low, high = p.range(extent)
    part = f"{x.name}{p.index(a, f'{low}:{high}')}"
    one = f"{x.name}{p.index(a, str(low))}"
    text = p.rng.choice(
        [
            f"{part} = 0.5",
            f"{part} = {part} * 2",
            f"{one} = 0.25",
            f"{one} = {one}.tanh()",
            f"{part} *= 3",
            f"{one} += 1",
            f"{part}.mul_(0.3)",
            f"{one}.zero_()",
            f"{one}.fill_(0.7)",
            f"{x.name}.narrow({a}, {low}, {high - low}).add_(0.4)",
            f"{x.name}.select({a}, {low}).copy_({one} * 2)",
            f"{x.name}{p.index(a, '::2')} = 0.1",
        ]
    )
    p.do(text)


@operation
def written_through_a_view(p: Program) -> None:
    x = p.copy(p.pick(lambda v: v.shape != ()))
    a = p.axis(x)
    views = [
        f"{x.name}.view({x.name}.shape)",
        f"{x.name}.flatten(1)",
        f"{x.name}.unsqueeze(1)",
        f"{x.name}{p.index(a, '0')}",
        f"{x.name}.transpose(1, -1)",
        f"torch.tensor_split({x.name}, 2, {a})[0]",
        f"{x.name}.chunk(2, {a})[-1]",
        f"{x.name}.unbind({a})[0]",
        f"{x.name}.split(1, {a})[0]",
        f"{x.name}.detach()",
        f"{x.name}.contiguous()",
        f"{x.name}.to({x.name}.dtype)",
        f"F.dropout({x.name}, 0.0, self.training)",
        f"F.dropout({x.name}, 0.5, False)",
        f"{x.name}.expand_as({x.name})",
        f"{x.name}.reshape(len({x.name}), -1)",
    ]
    if x.rank == 3:
        views += [f"{x.name}.diagonal(dim1=1, dim2=2)", f"{x.name}.mT", f"{x.name}.hsplit(1)[0]"]
    view = p.fresh("w")
    p.do(f"{view} = {p.rng.choice(views)}")
    how = p.rng.choice(["{}.mul_(3.0)", "{}.add_(1)", "{} += 2", "{}[:] = 0.5", "{}.zero_()"])
    p.do(how.replace("{}", view))
    if p.rng.random() < 0.5:
        p.let(f"{x.name} * 1.5", x.shape)


@operation
def written_new(p: Program) -> None:
    """A new tensor that is filled."""
    x = p.pick(lambda v: v.shape != ())
    sizes = ", ".join(map(str, x.shape))
    new = p.rng.choice(
        [
            f"{x.name}.new_zeros({x.name}.shape[0], {sizes})",
            f"torch.zeros_like({x.name})",
            f"torch.ones(x0.shape[0], {sizes}, dtype={x.name}.dtype)",
            f"{x.name}.new_full(({x.name}.size(0), {sizes}), 0.3)",
            f"torch.empty_like({x.name}).fill_(0.2)",
            f"torch.full_like({x.name}, 0.6)",
            f"{x.name}.new_ones({x.name}.shape)",
        ]
    )
    y = p.let(new, x.shape)
    a = p.axis(x)
    low, high = p.range(x.shape[a - 1])
    at = p.index(a, f"{low}:{high}")
    p.do(f"{y.name}{at} {p.rng.choice(['=', '+=', '*='])} {x.name}{at}")


# Sizes.


@operation
def sizes(p: Program) -> None:
    x = p.pick(lambda v: v.shape != ())
    a = p.axis(x)
    extent = x.shape[a - 1]
    text = p.rng.choice(
        [
            f"{x.name} / {x.name}.shape[{a}]",
            f"{x.name} / {x.name}.size({a}) ** 0.5",
            f"{x.name} / {x.name}.shape[0]",
            f"{x.name} / len({x.name})",
            f"{x.name}.sum() / {x.name}.numel() + {x.name}",
            f"{x.name} * ({x.name}[0].numel() * 0.1)",
            f"{x.name} - {x.name}.mean(0)",
            f"{x.name} - {x.name}.mean(0, keepdim=True)",
            f"{x.name} + torch.arange({x.name}.shape[-1], dtype={x.name}.dtype) * 0.1",
            f"{x.name} * torch.linspace(0.1, 1, {x.name}.shape[-1], dtype={x.name}.dtype)",
            f"{x.name} + torch.ones({x.name}.shape[0], 2, dtype={x.name}.dtype).sum() * 0.01",
            f"{x.name} + {x.name}.new_ones({x.name}.shape[0]).mean()",
            f"{x.name} * float({extent})",
            f"{x.name} + {x.name}.dim()",
            f"{x.name} + torch.eye({x.shape[-1]}, dtype={x.name}.dtype)[0]",
            f"{x.name} + torch.arange(len({x.name})).reshape({', '.join(['-1', *['1'] * a])}"
            f"{', 1' * (x.rank - a - 1)}) * 0.1",
        ]
    )
    p.let(text, x.shape)
