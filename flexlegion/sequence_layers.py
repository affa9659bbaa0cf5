"""Layers of sequences: embeddings, recurrent layers, attention (a part of the layer API).

Tensors of sequences have shape (sample, step, channel). Operators of an unrolled layer share their
weights by `share`: the output of the layer's first operator.
"""

from __future__ import annotations

from typing import NamedTuple

from flexlegion.errors import UserError
from flexlegion.initializers import Initializer, initializer
from flexlegion.layer_base import LayerBase
from flexlegion.ops.attention import LuongAttention, MultiHeadAttention
from flexlegion.ops.embedding import Embedding, PositionEmbedding
from flexlegion.ops.lstm import LSTM
from flexlegion.ops.normalization import LayerNorm
from flexlegion.tensor import Tensor


class LSTMOutput(NamedTuple):
    """What a recurrent layer returns.

    Parameters
    ----------
    y
        Outputs of all its steps, (n, steps, hidden).
    h, c
        State after the last step, each (n, hidden).
    """

    y: Tensor
    h: Tensor
    c: Tensor

    @property
    def state(self) -> tuple[Tensor, Tensor]:
        """What the next steps continue from."""
        return self.h, self.c


class SequenceLayers(LayerBase):
    """The layers of sequences."""

    def embedding(
        self,
        tokens: Tensor,
        vocabulary: int,
        units: int,
        start: int = 0,
        steps: int | None = None,
        embedding_initializer: str | Initializer = "normal",
        name: str | None = None,
        share: Tensor | None = None,
    ) -> Tensor:
        """A vector for each token, a row of the trained table (vocabulary, units).

        Parameters
        ----------
        tokens
            Numbers below `vocabulary`, int32 (n, T).
        vocabulary, units
            Rows and columns of the table.
        start, steps
            Reads the tokens of the steps [start, start + steps); all from `start` on by default.
        embedding_initializer
            First values of the table.
        name
            Of the operator.
        share
            Output of an embedding whose table this one uses, too.

        Returns
        -------
        Tensor
            Shape (n, steps, units).

        Raises
        ------
        UserError
            If an argument does not fit.
        """
        name = self._name("embedding", name)
        if steps is None:
            steps = tokens.shape[-1] - start
        kind = Embedding(
            self._positive(vocabulary, "vocabulary"),
            self._positive(units, "units"),
            start,
            steps,
            initializer(embedding_initializer),
        )
        return self._add(kind, tokens, name, share)

    def position_embedding(
        self,
        x: Tensor,
        embedding_initializer: str | Initializer = "normal",
        name: str | None = None,
    ) -> Tensor:
        """Add a trained vector to each position: (n, T, d) -> (n, T, d)."""
        kind = PositionEmbedding(initializer(embedding_initializer))
        return self._add(kind, x, self._name("position_embedding", name))

    def lstm(
        self,
        x: Tensor,
        hidden: int,
        state: tuple[Tensor, Tensor] | None = None,
        kernel_initializer: str | Initializer = "glorot_uniform",
        recurrent_initializer: str | Initializer = "glorot_uniform",
        bias_initializer: str | Initializer = "zeros",
        name: str | None = None,
        share: Tensor | None = None,
    ) -> LSTMOutput:
        """Some steps of a long short-term memory; one operator.

        Parameters
        ----------
        x
            Shape (n, steps, d). Of a single step the hidden units can be split, of several only the
            samples.
        hidden
            Number of units.
        state
            Where to continue from: h and c, each (n, hidden); zeros unless given.
        kernel_initializer, recurrent_initializer, bias_initializer
            First values of kernel (hidden, 4, d), recurrent_kernel (hidden, 4, hidden) and bias
            (hidden, 4); the gates are in the order i, f, g, o.
        name
            Of the operator.
        share
            An output of another step of this layer, whose weights this one uses, too.

        Returns
        -------
        LSTMOutput
            Outputs y (n, steps, hidden); state h and c, each (n, hidden).

        Raises
        ------
        UserError
            If an argument does not fit.
        """
        name = self._name("lstm", name)
        kind = LSTM(
            self._positive(hidden, "hidden"),
            initializer(kernel_initializer),
            initializer(recurrent_initializer),
            initializer(bias_initializer),
        )
        y, h, c, _ = self.graph.apply(kind, [x, *(state or ())], name, share).outputs
        return LSTMOutput(y, h, c)

    def luong_attention(
        self,
        states: Tensor,
        memory: Tensor,
        units: int,
        kernel_initializer: str | Initializer = "glorot_uniform",
        name: str | None = None,
        share: Tensor | None = None,
    ) -> Tensor:
        """Attention of a decoder over an encoder's states (Luong et al. 2015, score "general").

        Parameters
        ----------
        states
            The decoder's, (n, steps, d).
        memory
            The encoder's, (n, S, e).
        units
            Width of the result.
        kernel_initializer
            First values of score_kernel (d, e) and kernel (units, e + d).
        name
            Of the operator.
        share
            Output of a luong_attention whose weights this one uses, too.

        Returns
        -------
        Tensor
            tanh(kernel [context; states]), shape (n, steps, units).

        Raises
        ------
        UserError
            If an argument does not fit.
        """
        name = self._name("luong_attention", name)
        kind = LuongAttention(self._positive(units, "units"), initializer(kernel_initializer))
        return self.graph.add(kind, [states, memory], name, share)

    def multi_head_attention(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        causal: bool = False,
        name: str | None = None,
    ) -> Tensor:
        """The core of multi-head attention, without projections (Vaswani et al. 2017).

        Parameters
        ----------
        queries, keys, values
            Shapes (n, s, heads, d), (n, t, heads, d), (n, t, heads, e).
        causal
            Whether a position attends only to those before it, and itself.
        name
            Of the operator.

        Returns
        -------
        Tensor
            softmax(queries keys / sqrt(d)) values of each head, shape (n, s, heads, e).

        Raises
        ------
        UserError
            If the shapes do not fit together.
        """
        name = self._name("multi_head_attention", name)
        return self.graph.add(MultiHeadAttention(causal), [queries, keys, values], name)

    def layer_norm(self, x: Tensor, epsilon: float = 1e-5, name: str | None = None) -> Tensor:
        """Normalise over the last dimension, which cannot be split: (n, ..., c) -> (n, ..., c)."""
        return self._add(LayerNorm(self._epsilon(epsilon)), x, self._name("layer_norm", name))

    @staticmethod
    def _epsilon(value: float) -> float:
        if not 0 < value < 1:
            raise UserError(f"epsilon has to be above 0 and below 1, but is {value}")
        return float(value)
