"""A strategy written in SBP signatures."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from flexlegion.analysis.setting import AnyModel, network_of
from flexlegion.base.arguments import typed
from flexlegion.graph.signatures import AnySignature, Mesh
from flexlegion.objective.losses import Losses
from flexlegion.strategy.sbp.deduction import deduced
from flexlegion.strategy.strategy import Strategy


@typed
def sbp(
    model: AnyModel,
    mesh: Mesh,
    signatures: Mapping[str, AnySignature],
    *,
    loss: Losses | None = None,
) -> Strategy:
    """The strategy that OneFlow's SBP signatures of some tensors imply (section 3).

    How all other tensors lie is deduced from the operators' access maps; see ``docs/sbp.md``. The
    strategy is one as any other: `compile`, `simulate` and `search` take it, and it can be saved.

    Parameters
    ----------
    model
        A `Model`, or how it is named.
    mesh
        The devices.
    signatures
        By a tensor's name: of an input, of a weight (``fc.kernel``), or for what a layer computes,
        the layer's name; a ``*`` stands for any letters. `S(dimension)`, `B` or `P`, of a mesh of
        several axes a tuple with one for each; None along an axis that is to be deduced. Of inputs
        and weights it says how they are read, of what a layer computes, how it is written;
        `Tensor.to_global` says how that is read.
    loss
        As `Model.compile` takes it; by default the model's own.

    Returns
    -------
    Strategy
        A configuration for every operator, the loss included.

    Raises
    ------
    UserError
        If there is no such tensor, a signature does not fit it, or no way of splitting the
        operators agrees with all of them.

    Examples
    --------
    >>> mesh = Mesh([["gpu:0", "gpu:1"], ["gpu:2", "gpu:3"]])
    >>> sbp(model, mesh, {"contract.kernel": (B, S(1)), "tokens": (S(0), B)})
    """
    network = network_of(model, loss=loss)
    strategy, messages = deduced(network.graph, mesh, signatures, "SBP signatures")
    for message in messages:
        warnings.warn(message, stacklevel=2)
    return strategy
