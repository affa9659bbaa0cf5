"""Which operators share the cost table's entries."""

from __future__ import annotations

from flexlegion.analysis.setting import Setting
from flexlegion.model.model import Model


def test_partial_values_set_operators_apart() -> None:
    """Two reshapes share nothing if one of them, and not the other, may read partial values."""
    model = Model(8)
    x = model.input((16,))
    whole = model.reshape(model.relu(model.dense(x, 8)), (2, 4), name="of_whole")
    partial = model.reshape(model.dense(x, 8), (2, 4), name="of_partial")
    model.dense(model.flatten(model.add([whole, partial])), 4)
    model.loss = "sparse_categorical_crossentropy"
    problem = Setting.of(model, "p100x4", costs="analytic").problem
    classes = {op.name: problem.class_of(op) for op in problem.graph.operators}
    assert classes["of_whole"] != classes["of_partial"]
    assert classes["dense_1"] == classes["dense_2"]
