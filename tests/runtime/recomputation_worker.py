"""Run under legate: what saves memory changes of training no bit.

Each network trains by strategies that have it keep every tensor, by the same ones where tensors
take turns in memory, and with additions as well: operators run again for the backward pass, or
sharded weights. What differs is written as JSON, with how many launches the additions have.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from networks import NETWORKS, Network
from training_state import KEPT, State, train
from zoo_cases import CASES, ZooCase

from flexlegion import UserError
from flexlegion.machine.running import running_machine
from flexlegion.strategy.granularity import Granularity

# Short waits before memory is used again, so that small networks share it; and as it is by default.
SHARING = (Granularity(1, 1), Granularity())


def state_of(
    network: Network | ZooCase, strategy: str, granularity: Granularity, rounds: int
) -> tuple[State, int, int]:
    """What training leaves behind, launches that save memory, and bytes that are allocated."""
    model, state = train(network, strategy, granularity, micro_batches=rounds)
    again = sum(launch.pass_ in ("again", "reduce") for launch in model.plan.launches)
    allocated = sum(model.plan.bytes_on(name) for name in running_machine().devices.names)
    model.close()
    return state, again, allocated


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--strategies", nargs="+", default=["single", "data", "model"])
    parser.add_argument("--additions", nargs="+", default=["again"])
    parser.add_argument("--rounds", type=int, default=1, help="micro-batches")
    parser.add_argument("--as-trained", action="store_true", help="no short waits for memory")
    args = parser.parse_args()
    found = {}
    networks: dict[str, Network | ZooCase] = {**NETWORKS, **CASES}
    for name, network in networks.items():
        for strategy in args.strategies:
            try:
                kept, _, all_ = state_of(network, strategy, KEPT, args.rounds)
            except UserError:
                continue  # it has no micro-batches
            differ, again, least = [], 0, all_
            for granularity in SHARING[args.as_trained :]:
                for spec in (strategy, *(f"{strategy}+{its}" for its in args.additions)):
                    state, ran, bytes_ = state_of(network, spec, granularity, args.rounds)
                    again, least = max(again, ran), min(least, bytes_)
                    differ += [
                        f"{spec}: {key}"
                        for key, value in state.items()
                        if value.tobytes() != kept[key].tobytes()
                    ]
            found[f"{name} {strategy}"] = {"differ": differ, "again": again, "saved": all_ - least}
    Path(f"{args.out}.{running_machine().rank}").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
