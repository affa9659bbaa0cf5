"""Parameter groups: which weights they name, and how they are written."""

from __future__ import annotations

import pytest

from flexlegion import SGD, Adam, LazyAdam, Model, ParameterGroup, UserError
from flexlegion.graph.tensor import Tensor
from flexlegion.objective.groups import groups_of


def weights() -> list[Tensor]:
    model = Model(4)
    x = model.layer_norm(model.dense(model.input((3,)), 5, name="hidden"), name="norm")
    model.dense(x, 2, name="out")
    return model.graph.weights


def found(*groups: ParameterGroup) -> dict[str, int]:
    its = weights()
    numbers = groups_of(its, groups)
    return dict(zip([weight.name for weight in its], numbers, strict=True))


def test_the_first_that_names_a_weight_has_it() -> None:
    head, small = ParameterGroup(["out.*", "?idden.kernel"], lr=1), ParameterGroup(max_dims=1, lr=2)
    assert found(head, small) == {
        "hidden.kernel": 0,
        "hidden.bias": 1,
        "norm.gamma": 1,
        "norm.beta": 1,
        "out.kernel": 0,
        "out.bias": 0,
    }
    assert found(small)["out.kernel"] == -1


def test_groups_without_weights() -> None:
    with pytest.raises(
        UserError, match=r"^the parameter group Out.\* names no weight that is trai"
    ):
        found(ParameterGroup("Out.*", lr=1))
    with pytest.raises(UserError, match=r"out.\* has no weight left: out.kernel, out.bias are in "):
        found(ParameterGroup(lr=1), ParameterGroup("out.*", lr=2))


def test_texts() -> None:
    parsed = ParameterGroup.parsed
    assert parsed("*.bias,norm*:weight_decay=0") == ParameterGroup(
        ("*.bias", "norm*"), weight_decay=0.0
    )
    assert parsed("dims<=1:lr=1e-3,weight_decay=0.5") == ParameterGroup(
        lr=1e-3, weight_decay=0.5, max_dims=1
    )
    assert parsed("a.*,dims<=2:lr=0") == ParameterGroup("a.*", lr=0.0, max_dims=2)
    for text in ("*.bias,norm*:lr=0.1,weight_decay=0", "dims<=1:lr=0.5", "a.*,dims<=2:lr=0"):
        assert parsed(text).text == text
    for text in ("", ":lr=1", "a", "a:", "a:lr", "a:lr=1,lr=2", "a:beta1=0", "dims<=x:lr=1"):
        with pytest.raises(UserError, match="is no parameter group; write patterns"):
            parsed(text)


def test_numbers() -> None:
    with pytest.raises(UserError, match="has neither lr nor weight_decay of its own"):
        ParameterGroup("*")
    with pytest.raises(UserError, match="needs a weight_decay of at least 0"):
        ParameterGroup("*", weight_decay=-1.0)
    with pytest.raises(UserError, match="needs patterns of names"):
        ParameterGroup([], lr=1.0)


def test_what_is_kept_and_charged() -> None:
    """Averages are a state more; plain SGD with them, or with decay, looks at whole tables."""
    assert (Adam().state_names, Adam(ema=0.9).state_names) == (("m", "v"), ("m", "v", "ema"))
    assert SGD(ema=0.9).state_names == ("ema",)
    assert SGD(groups=[ParameterGroup(lr=1.0)]).lazy
    assert not SGD(groups=[ParameterGroup(weight_decay=1.0)]).lazy
    assert not SGD(ema=0.9).lazy
    assert hash(SGD(groups=[ParameterGroup(lr=1.0)]))
    with pytest.raises(UserError, match="averages of weights"):
        LazyAdam(ema=0.9)
