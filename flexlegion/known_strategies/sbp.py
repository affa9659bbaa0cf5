"""What a model itself says by OneFlow's SBP signatures."""

import warnings

from flexlegion.base.errors import UserError
from flexlegion.graph.graph import Graph
from flexlegion.known_strategies.registry import own_strategy
from flexlegion.machine.devices import Devices
from flexlegion.strategy.sbp.deduction import deduced
from flexlegion.strategy.strategy import Strategy


@own_strategy("sbp")
def sbp(graph: Graph, devices: Devices) -> Strategy:
    """As `Tensor.to_global` says in the model; what it leaves open follows its neighbours.

    Layers that read nothing of another mesh are on that of the first of these calls.
    """
    del devices  # which signatures name themselves
    said = [placed for op in graph.operators for placed in op.signatures.values()]
    if not said:
        raise UserError(
            "strategy 'sbp' is what a model says by its tensors' to_global, and this model says "
            "nothing; choose another strategy, or write signatures as flexlegion.sbp takes them"
        )
    strategy, messages = deduced(graph, said[0].mesh, {}, "strategy 'sbp'")
    for message in messages:
        warnings.warn(message, stacklevel=2)
    return strategy
