"""Small networks' weights are not cut into shards unless small shards are allowed."""

import pytest


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEXLEGION_SHARD_BYTES", "1")
