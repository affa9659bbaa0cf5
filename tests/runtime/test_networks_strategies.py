"""The zoo's networks compute under random strategies what one device computes.

FLEXLEGION_STRATEGIES is the number of strategies for each network, 10 unless it is set (of some
networks, a part of it).
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from launch import run_legate
from zoo_cases import CASES

WORKER = Path(__file__).parent / "strategies_worker.py"
COUNT = int(os.environ.get("FLEXLEGION_STRATEGIES", "10"))
# The dense layers of AlexNet cannot be made small; Inception has 500 operators. GPT, BERT and ViT
# have the transformer's blocks, Mixtral has those of the mixture of experts; InsightFace and other
# residual networks have ResNet-101's, and dropped tokens change little of experts.
SHARES = {
    "alexnet": 0.2,
    "bert": 0.3,
    "dlrm": 0.5,
    "gpt": 0.2,
    "inception_v3": 0.2,
    "insightface": 0.3,
    "insightface_ir": 0.3,
    "llama": 0.5,
    "mixtral": 0.2,
    "moe": 0.5,
    "moe_capacity": 0.3,
    "moe_gshard": 0.3,
    "resnet101": 0.5,
    "resnet152": 0.2,
    "resnet50": 0.3,
    "vgg16": 0.3,
    "vit": 0.3,
    "wide_deep": 0.3,
    "wide_deep_crosses": 0.2,
}
CPUS = 2

pytestmark = pytest.mark.legion


@pytest.mark.parametrize("name", CASES)
def test_random_strategies(name: str, tmp_path: Path) -> None:
    """Weights, all gradients, outputs, losses and placements of three steps, by relative norm."""
    out = tmp_path / "result.json"
    count = max(1, round(SHARES.get(name, 1.0) * COUNT))
    arguments = ["--first", 100, "--count", count, "--out", out, "--zoo", name]
    run_legate(WORKER, *arguments, cpus=CPUS, timeout=300 + 30 * count)
    result = json.loads(Path(f"{out}.0").read_text())
    assert result["failures"] == []
    assert (result["processors"], result["strategies"]) == (CPUS, count)
    assert result["copied_bytes"] == 0
