"""A model's graph as it is trained: with losses, in as many bits and micro-batches as is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flexlegion.graph.graph import Graph
from flexlegion.graph.tensor import Tensor
from flexlegion.objective.losses import Losses, chosen_loss
from flexlegion.objective.training import TrainingSpec
from flexlegion.transforms.losses import add_losses
from flexlegion.transforms.micro_batches import micro_batched
from flexlegion.transforms.storage import stored
from flexlegion.transforms.tables import tables_to_sum


def as_trained(
    graph: Graph, outputs: Sequence[Tensor], own_loss: Losses | None, training: TrainingSpec
) -> tuple[Graph, tuple[Tensor, ...], TrainingSpec]:
    """The graph that is trained; every way to train or to simulate begins here.

    Parameters
    ----------
    graph
        The model's; it stays as it is.
    outputs
        Its outputs.
    own_loss
        What the model itself says, if anything.
    training
        How it is to be trained.

    Returns
    -------
    Graph
        With a loss operator after each output that is trained, and inputs for labels; of one
        micro-batch.
    tuple of Tensor
        The outputs, of that graph.
    TrainingSpec
        The same, with the loss that was chosen.

    Raises
    ------
    UserError
        If there is no such loss, or it does not fit; or if the batch cannot be divided so.
    """
    loss = chosen_loss(training.loss, own_loss, outputs)
    with_losses = add_losses(graph, outputs, loss, training.loss_weights)
    whole, its_outputs = stored(with_losses, outputs, training.storage)
    summed = tables_to_sum(whole, training.optimizer)
    micro, its_outputs = micro_batched(whole, its_outputs, training.micro_batches, summed)
    return micro, its_outputs, replace(training, loss=loss)
