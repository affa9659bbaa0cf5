"""Layers of mixtures of experts, and the choice of who computes what."""

from __future__ import annotations

from typing import Literal

from flexlegion.base.arguments import typed_methods
from flexlegion.base.errors import UserError
from flexlegion.graph.initializers import AnyInitializer, initializer
from flexlegion.graph.tensor import Tensor
from flexlegion.layers.base import LayerBase
from flexlegion.ops.experts import Capacity, Experts, TopK


@typed_methods
class ExpertLayers(LayerBase):
    """The layers of mixtures of experts."""

    def top_k(self, x: Tensor, k: int, name: str | None = None) -> Tensor:
        """The k largest values of each row, and 0 elsewhere: (n, ..., c) -> (n, ..., c).

        Of equal values, the first ones are kept. Only what is kept has a gradient.
        """
        return self._add(TopK(k), x, self._name("top_k", name))

    def capacity(self, gates: Tensor, most: int, name: str | None = None) -> Tensor:
        """Of each column, the first `most` values that are not 0: (n, ..., c) -> (n, ..., c).

        Of the others, 0. The order is that of the whole batch, so that rows cannot be split, and no
        strategy changes which ones are kept.
        """
        return self._add(Capacity(most), gates, self._name("capacity", name))

    def experts(
        self,
        x: Tensor,
        gates: Tensor,
        units: int,
        activation: Literal["relu", "gelu", "silu"] = "gelu",
        gated: bool = False,
        load: float | None = None,
        kernel_initializer: AnyInitializer = "glorot_uniform",
        name: str | None = None,
        share: Tensor | None = None,
        trainable: bool = True,
    ) -> Tensor:
        """Networks of two dense layers, each computing some rows; their sum, times the gates.

        An expert is down(f(up(x))) or, if `gated`, down(f(up(x)) gate(x)), without biases. Each
        row goes to the experts whose gate is not 0, however many these are: none is dropped.

        Parameters
        ----------
        x
            Rows, (n, ..., d).
        gates
            (n, ..., experts): how much of each expert's result is in the sum.
        units
            Width between an expert's layers.
        activation, gated
            f, and whether there is the third layer, as in SwiGLU.
        load
            How many experts a row goes to on average. Simulations assume that, evenly among the
            experts; it changes nothing that is computed. All of them unless given.
        kernel_initializer
            First values of up (experts, units, d), down (experts, d, units) and gate, which is as
            up.
        name
            Of the operator.
        share
            Output of such a layer whose weights this one uses, too.
        trainable
            False makes the weights constant.

        Returns
        -------
        Tensor
            (n, ..., d).

        Raises
        ------
        UserError
            If an argument does not fit.
        """
        name = self._name("experts", name)
        if activation not in ("relu", "gelu", "silu"):
            raise UserError(
                f"the activation of experts is relu, gelu or silu, but is {activation!r}"
            )
        experts = gates.shape[-1]
        if load is not None and not 0 < load <= experts:
            raise UserError(
                f"the load of {experts} experts has to be above 0 and at most {experts}, but is "
                f"{load}"
            )
        kind = Experts(
            self._positive(units, "units"),
            activation,
            gated,
            float(experts if load is None else load),
            (initializer(kernel_initializer),) * 3,
        )
        return self.graph.add(kind, [x, gates], name, share, trainable)
