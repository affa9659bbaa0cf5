"""Options of the zoo's networks: other backbones, tables and widths than by default."""

from __future__ import annotations

from sample_plans import weights_of

from flexlegion.zoo import build


def test_backbones_of_insightface() -> None:
    """Those of arcface_torch have 43,590,848 and 65,156,160, by hand; and there are the persons."""
    for backbone, weights, image in (
        ("ir50", 43_590_848, (7, 7, 512)),
        ("ir100", 65_156_160, (7, 7, 512)),
        ("resnet50", 25_557_032 - 1000 * 2049 + 512 * (4 * 4 * 2048 + 1), (4, 4, 2048)),
    ):
        graph = build("insightface", 2, classes=10, backbone=backbone).graph
        assert weights_of(graph) == weights + 10 * 512
        (flatten,) = (op for op in graph.operators if op.name == "flatten")
        assert flatten.inputs[0].shape[1:] == image


def test_categories_of_the_wide_part() -> None:
    """Its own, in a table each or one for all; or the deep part's, of as many rows."""
    for sizes, tables in (
        ({}, {"wide": [5] * 26, "deep": [5] * 26}),
        ({"wide_fields": 2}, {"wide": [5] * 2, "deep": [5] * 26}),
        ({"wide_fields": 2, "wide_rows": 7, "tables": 1}, {"wide": [7], "deep": [5]}),
    ):
        graph = build("wide_deep", 2, rows=5, **sizes).graph
        found = {
            part: [
                weight.shape[0]
                for weight in graph.trained_weights
                if weight.name.startswith(f"{part}.embed")
            ]
            for part in ("wide", "deep")
        }
        assert found == tables
        assert ("crosses" in [tensor.name for tensor in graph.inputs]) == ("wide_fields" in sizes)


def test_tables_of_dlrm() -> None:
    """One a field, of rows of its own; the products are those of different vectors, once each."""
    graph = build("dlrm", 2, fields=3, tables=(7, 8, 9), bottom=(4,), top=()).graph
    shapes = {tensor.name: tensor.shape for tensor in graph.trained_weights}
    assert [shapes[f"embed{i}.table"] for i in (1, 2, 3)] == [(7, 4), (8, 4), (9, 4)]
    assert shapes["output.kernel"] == (1, 6 + 4)


def test_wide_resnet_has_wide_blocks() -> None:
    """Torchvision's wide_resnet50_2: the blocks' outputs are as those of ResNet-50."""
    graph = build("resnet50", 2, width_factor=2).graph
    assert weights_of(graph) == 68_883_240
    shapes = {op.name: op.output.shape[1:] for op in graph.operators}
    assert shapes["stage1.block1.conv2"] == (56, 56, 128)
    assert shapes["stage1.block1.conv3"] == (56, 56, 256)
