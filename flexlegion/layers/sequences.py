"""Layers of sequences: embeddings, recurrent layers, attention (a part of the layer API).

Tensors of sequences have shape (sample, step, channel). Operators of an unrolled layer share their
weights by `share`: the output of the layer's first operator.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from flexlegion.base.arguments import typed_methods
from flexlegion.base.errors import UserError
from flexlegion.graph.initializers import AnyInitializer, Given, initializer
from flexlegion.graph.tensor import Tensor
from flexlegion.layers.arrays import check_tokens
from flexlegion.layers.base import LayerBase
from flexlegion.ops.attention import LuongAttention, MultiHeadAttention
from flexlegion.ops.embedding import Embedding, PositionEmbedding
from flexlegion.ops.gru import GRU
from flexlegion.ops.lstm import LSTM
from flexlegion.ops.rotary import Rotary


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


class GRUOutput(NamedTuple):
    """What a layer of gated recurrent units returns.

    Parameters
    ----------
    y
        Outputs of all its steps, (n, steps, hidden).
    h
        State after the last step, (n, hidden): what the next steps continue from.
    """

    y: Tensor
    h: Tensor


@typed_methods
class SequenceLayers(LayerBase):
    """The layers of sequences."""

    def embedding(
        self,
        tokens: Tensor,
        vocabulary: int,
        units: int,
        start: int = 0,
        steps: int | None = None,
        embedding_initializer: AnyInitializer = "normal",
        name: str | None = None,
        share: Tensor | None = None,
        trainable: bool = True,
        padding: int | None = None,
    ) -> Tensor:
        """A vector for each token, a row of the trained table (vocabulary, units).

        Parameters
        ----------
        tokens
            Numbers below `vocabulary`, int32 (n, ...): one a sample (n), or a sequence (n, T).
        vocabulary, units
            Rows and columns of the table.
        start, steps
            Of sequences, reads the tokens of the steps [start, start + steps); all from `start` on
            by default.
        embedding_initializer
            First values of the table.
        name
            Of the operator.
        share
            Output of an embedding whose table this one uses, too.
        trainable
            False makes the table constant.
        padding
            A token whose row is read, but not trained.

        Returns
        -------
        Tensor
            Shape (n, ..., units): of sequences (n, steps, units).

        Raises
        ------
        UserError
            If an argument does not fit.
        """
        name = self._name("embedding", name)
        if steps is None and start != 0:
            steps = tokens.shape[-1] - start
        kind = Embedding(
            self._positive(vocabulary, "vocabulary"),
            self._positive(units, "units"),
            start,
            steps,
            -1 if padding is None else self._row(padding, vocabulary),
            initializer(embedding_initializer),
        )
        vectors = self._add(kind, tokens, name, share, trainable)
        if isinstance(tokens.initializer, Given) and tokens.initializer.is_known:
            check_tokens(self.graph, {tokens: np.asarray(tokens.initializer.array)})
        return vectors

    @staticmethod
    def _row(padding: int, vocabulary: int) -> int:
        if not 0 <= padding < vocabulary:
            raise UserError(
                f"embedding's padding token has to be from 0 to {vocabulary - 1}, but is {padding}"
            )
        return padding

    def position_embedding(
        self,
        x: Tensor,
        embedding_initializer: AnyInitializer = "normal",
        name: str | None = None,
        share: Tensor | None = None,
        trainable: bool = True,
    ) -> Tensor:
        """Add a trained vector to each position: (n, T, d) -> (n, T, d).

        `share` is the output of another position embedding of T positions, whose vectors this one
        uses, too; vectors that are not `trainable` are constant.
        """
        kind = PositionEmbedding(initializer(embedding_initializer))
        return self._add(kind, x, self._name("position_embedding", name), share, trainable)

    def lstm(
        self,
        x: Tensor,
        hidden: int,
        state: tuple[Tensor, Tensor] | None = None,
        kernel_initializer: AnyInitializer = "glorot_uniform",
        recurrent_initializer: AnyInitializer = "glorot_uniform",
        bias_initializer: AnyInitializer = "zeros",
        name: str | None = None,
        share: Tensor | None = None,
        trainable: bool = True,
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
        trainable
            False makes the weights constant.

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
        y, h, c, _ = self.graph.apply(kind, [x, *(state or ())], name, share, trainable).outputs
        return LSTMOutput(y, h, c)

    def gru(
        self,
        x: Tensor,
        hidden: int,
        state: Tensor | None = None,
        kernel_initializer: AnyInitializer = "glorot_uniform",
        recurrent_initializer: AnyInitializer = "glorot_uniform",
        bias_initializer: AnyInitializer = "zeros",
        name: str | None = None,
        share: Tensor | None = None,
        trainable: bool = True,
    ) -> GRUOutput:
        """Some steps of gated recurrent units (Cho et al. 2014); one operator.

        x is (n, steps, d), and `state`, where to continue from, (n, hidden), zeros unless given.
        Weights are kernel (hidden, 3, d), recurrent_kernel (hidden, 3, hidden), bias and
        recurrent_bias (hidden, 3), with the gates in the order r, z, n, as PyTorch has them; the
        bias within the reset gate is among the second. `share` and `trainable` as for `lstm`.
        """
        kind = GRU(
            self._positive(hidden, "hidden"),
            initializer(kernel_initializer),
            initializer(recurrent_initializer),
            initializer(bias_initializer),
            initializer(bias_initializer),
        )
        inputs = [x] if state is None else [x, state]
        y, h, _ = self.graph.apply(kind, inputs, self._name("gru", name), share, trainable).outputs
        return GRUOutput(y, h)

    def luong_attention(
        self,
        states: Tensor,
        memory: Tensor,
        units: int,
        kernel_initializer: AnyInitializer = "glorot_uniform",
        name: str | None = None,
        share: Tensor | None = None,
        trainable: bool = True,
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
        trainable
            False makes the weights constant.

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
        return self.graph.add(kind, [states, memory], name, share, trainable)

    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        bias: Tensor | None = None,
        causal: bool = False,
        scale: float | None = None,
        dropout: float = 0.0,
        name: str | None = None,
    ) -> Tensor:
        """softmax(scale q k + bias) v of each head; one operator.

        Parameters
        ----------
        q, k, v
            Queries (n, s, heads, d), keys (n, t, groups, d) and values (n, t, groups, e). The
            heads / groups heads of a group share its keys and values.
        bias
            What is added to the scores, (n, heads, s, t), each extent of which may be 1 instead. A
            mask is -infinity where a query does not attend; of a query that attends to nothing, the
            output is zero. It is trained if it depends on weights.
        causal
            Whether position i attends to the positions up to i alone, from the first ones on also
            where s and t differ.
        scale
            Of the scores, above 0; 1 / sqrt(d) by default.
        dropout
            Probability that a weight of a position is dropped, while training; the others are
            scaled up.
        name
            Of the operator.

        Returns
        -------
        Tensor
            Shape (n, s, heads, e).

        Raises
        ------
        UserError
            If an argument does not fit.
        """
        return self._attention("attention", (q, k, v), bias, causal, scale, dropout, name)

    def multi_head_attention(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        causal: bool = False,
        name: str | None = None,
    ) -> Tensor:
        """The core of multi-head attention, without projections (Vaswani et al. 2017).

        It is `attention` without a bias or dropout, and with the scale 1 / sqrt(d).

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
        read = (queries, keys, values)
        return self._attention("multi_head_attention", read, None, causal, None, 0.0, name)

    def _attention(
        self,
        layer: str,
        read: tuple[Tensor, Tensor, Tensor],
        bias: Tensor | None,
        causal: bool,
        scale: float | None,
        dropout: float,
        name: str | None,
    ) -> Tensor:
        if scale is None:
            scale = 1 / math.sqrt(read[0].shape[-1])
        if not 0 < scale < math.inf:
            raise UserError(f"attention takes a finite scale above 0, but got {scale}")
        number = len(self.graph.operators) if dropout else 0
        kind = MultiHeadAttention(causal, float(scale), self._rate(dropout), number)
        inputs = [*read, *([] if bias is None else [bias])]
        return self.graph.add(kind, inputs, self._name(layer, name))

    def rotary(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        interleaved: bool = False,
        name: str | None = None,
    ) -> Tensor:
        """Turn pairs of channels by their position's angles (Su et al. 2021): x cos + r(x) sin.

        Parameters
        ----------
        x
            Shape (n, s, heads, d), d even.
        cos, sin
            (n, s, d) or (n, s, 1, d), where n may be 1; they depend on nothing that is trained.
        interleaved
            Whether neighbouring channels are a pair: r maps (a, b) to (-b, a). Otherwise channel i
            and channel d / 2 + i are one, as in Llama.
        name
            Of the operator.

        Returns
        -------
        Tensor
            Shape of x.

        Raises
        ------
        UserError
            If the shapes do not fit together, or the angles are trained.
        """
        name = self._name("rotary", name)
        for tensor in (cos, sin):
            if tensor.requires_gradient:
                raise UserError(
                    f"operator '{name}': rotary has no gradient for its cosines and sines, but "
                    f"{tensor.name} depends on what is trained"
                )
        return self.graph.add(Rotary(interleaved), [x, cos, sin], name)
