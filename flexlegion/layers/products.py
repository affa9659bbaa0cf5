"""Layers that multiply: fully connected ones, matrices, cosines."""

from __future__ import annotations

from flexlegion.base.arguments import typed_methods
from flexlegion.graph.initializers import AnyInitializer, initializer
from flexlegion.graph.tensor import Tensor
from flexlegion.layers.elementwise import ElementwiseLayers
from flexlegion.ops.attention import MatMul
from flexlegion.ops.cosine import Cosine
from flexlegion.ops.dense import Dense


@typed_methods
class ProductLayers(ElementwiseLayers):
    """The layers that multiply."""

    def dense(
        self,
        x: Tensor,
        units: int,
        activation: str | None = None,
        use_bias: bool = True,
        kernel_initializer: AnyInitializer = "glorot_uniform",
        bias_initializer: AnyInitializer = "zeros",
        name: str | None = None,
        share: Tensor | None = None,
        trainable: bool = True,
    ) -> Tensor:
        """Fully connected: (n, ..., i) -> (n, ..., units).

        `share` is the output of a layer whose weights this one uses, too: of a dense layer of the
        same sizes, or, without a bias, of an embedding of `units` tokens. Weights that are not
        `trainable` are constant: they have no gradient, and training leaves them as they are.
        """
        name = self._name("dense", name)
        fused, separate = self._fused(activation)
        kind = Dense(
            self._positive(units, "units"),
            use_bias,
            fused,
            initializer(kernel_initializer),
            initializer(bias_initializer),
        )
        return self._activated(self._add(kind, x, name, share, trainable), separate, name)

    def cosine(
        self,
        x: Tensor,
        units: int,
        kernel_initializer: AnyInitializer = "normal",
        name: str | None = None,
        share: Tensor | None = None,
        trainable: bool = True,
    ) -> Tensor:
        """Cosine of the angle to each row of a kernel (units, i): (n, ..., i) -> (n, ..., units).

        The losses "arcface" and "cosface" train it to classify by angle. `share` and `trainable` as
        for `dense`.
        """
        kind = Cosine(self._positive(units, "units"), initializer(kernel_initializer))
        return self._add(kind, x, self._name("cosine", name), share, trainable)

    def matmul(self, a: Tensor, b: Tensor, name: str | None = None) -> Tensor:
        """Matrix products of each sample: (n, ..., i, k) x (n, ..., k, j) -> (n, ..., i, j)."""
        return self.graph.add(MatMul(), [a, b], self._name("matmul", name))
