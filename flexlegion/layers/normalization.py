"""Layers that normalise."""

from __future__ import annotations

from typing import Literal

from flexlegion.base.arguments import typed_methods
from flexlegion.base.errors import UserError
from flexlegion.graph.tensor import Tensor
from flexlegion.layers.base import LayerBase
from flexlegion.layers.batch_norm import add_moments
from flexlegion.ops.normalization import BATCH_NORM_ACTIVATIONS, BatchNorm, GroupNorm, LayerNorm


@typed_methods
class NormalizationLayers(LayerBase):
    """The layers that normalise."""

    def batch_norm(
        self,
        x: Tensor,
        activation: Literal["relu", "relu6", "silu", "hardswish"] | None = None,
        epsilon: float = 1e-3,
        momentum: float = 0.1,
        name: str | None = None,
        *,
        residual: Tensor | None = None,
        share: Tensor | None = None,
        trainable: bool = True,
    ) -> Tensor:
        """Batch normalisation over all dimensions but the last, a residual, an activation.

        Three operators: ``NAME.statistics`` takes each sample's mean and variance;
        ``NAME.moments`` combines them to those of the global batch, whatever the strategy, and
        keeps their running averages, ``NAME.moments.running_mean`` and
        ``NAME.moments.running_variance``; NAME normalises. Evaluation and prediction normalise by
        the running averages.

        Parameters
        ----------
        x
            Shape (n, ..., channel).
        activation
            None, "relu", "relu6", "silu" or "hardswish"; of the sum if there is a residual, and
            then None or "relu".
        epsilon
            Added to the variance.
        momentum
            The share of each batch in the running averages, 0 to 1.
        name
            Of the normalising operator.
        residual
            Of the shape of `x`; added to what is normalised. One pass over the memory where
            ``add`` and ``relu`` would take two more.
        share
            Output of a batch_norm whose gamma and beta this one uses, too. Its moments and running
            averages are its own.
        trainable
            False makes gamma and beta constant. Training still normalises by the batch's moments,
            and moves the running averages.

        Returns
        -------
        Tensor
            Of the shape of `x`.

        Raises
        ------
        UserError
            If an argument does not fit.
        """
        if activation is not None and activation not in BATCH_NORM_ACTIVATIONS:
            raise UserError(
                f"batch_norm's activation is None or one of {', '.join(BATCH_NORM_ACTIVATIONS)}, "
                f"but is '{activation}'"
            )
        if not 0 <= momentum <= 1:
            raise UserError(f"batch_norm's momentum has to be 0 to 1, but is {momentum}")
        kind = BatchNorm(self._epsilon(epsilon), activation or "none")
        residuals = [] if residual is None else [residual]
        # All shapes have to fit before the first of the three is added.
        kind.output_shape([x.shape, (1, 2, x.shape[-1]), *(r.shape for r in residuals)])
        name = self._name("batch_norm", name)
        moments = add_moments(self.graph, x, float(momentum), name).output
        return self.graph.add(kind, [x, moments, *residuals], name, share, trainable)

    def layer_norm(
        self,
        x: Tensor,
        epsilon: float = 1e-5,
        name: str | None = None,
        share: Tensor | None = None,
        trainable: bool = True,
        *,
        use_scale: bool = True,
        use_bias: bool = True,
    ) -> Tensor:
        """Normalise over the last dimension, which cannot be split: (n, ..., c) -> (n, ..., c).

        `use_scale` and `use_bias` say whether there are gamma and beta. `share` is the output of
        another layer_norm, whose gamma and beta this one uses, too; if they are not `trainable`,
        they are constant.
        """
        kind = LayerNorm(self._epsilon(epsilon), True, use_scale, use_bias)
        return self._add(kind, x, self._name("layer_norm", name), share, trainable)

    def rms_norm(
        self,
        x: Tensor,
        epsilon: float = 1e-6,
        name: str | None = None,
        share: Tensor | None = None,
        trainable: bool = True,
        *,
        use_scale: bool = True,
    ) -> Tensor:
        """Divide by the root of the mean square over the last dimension, which cannot be split.

        `use_scale` says whether there is gamma; `share` and `trainable` are as in `layer_norm`.
        """
        kind = LayerNorm(self._epsilon(epsilon), False, use_scale, False)
        return self._add(kind, x, self._name("rms_norm", name), share, trainable)

    def group_norm(
        self,
        x: Tensor,
        groups: int,
        epsilon: float = 1e-5,
        name: str | None = None,
        share: Tensor | None = None,
        trainable: bool = True,
        *,
        use_scale: bool = True,
        use_bias: bool = True,
    ) -> Tensor:
        """Normalise each sample over all positions and a group of neighbouring channels.

        Parameters
        ----------
        x
            Shape (n, ..., channel).
        groups
            How many; with as many groups as channels, it is instance normalisation.
        epsilon
            Added to the variance.
        name
            Of the operator.
        share
            The output of another group_norm, whose weights this one uses, too.
        trainable
            Whether training updates its weights.
        use_scale, use_bias
            Whether each channel has a factor, and a summand.

        Returns
        -------
        Tensor
            Of the shape of `x`.

        Raises
        ------
        UserError
            If the channels cannot be cut into so many groups.
        """
        groups = self._positive(groups, "groups")
        kind = GroupNorm(groups, self._epsilon(epsilon), use_scale, use_bias)
        return self._add(kind, x, self._name("group_norm", name), share, trainable)
