"""How the operands of an operator lie on a mesh.

SBP signatures are a notation for strategies, and nothing executes them. That a signature of an
operator's inputs implies one of its output needs no rule of the operator's own: both follow from
its access maps. If the parts along an axis of a mesh take ranges of one dimension of an operator's
space, an operand that is mapped along this dimension is S, an input that is not is B, and an output
that is not is P.
"""

from __future__ import annotations

from flexlegion.graph.operator_type import Access
from flexlegion.graph.signatures import B, P, Sbp
from flexlegion.graph.tensor import TensorRole


def signature_of(access: Access, role: TensorRole, dim: int) -> Sbp:
    """How an operand lies along an axis of a mesh whose parts take ranges of a dimension.

    Parameters
    ----------
    access
        How the operator uses it.
    role
        Whether it is read or written.
    dim
        The dimension of the operator's space that is split.

    Returns
    -------
    Sbp
        S, if it is mapped along the dimension. If not: P of what is written, by all parts, of what
        the first part alone reads, as a bias of which it has the term and the others have 0, and of
        an input whose partial values the parts share out; else B, as of a prefix, too, which the
        parts share.
    """
    for axis, its in enumerate(access.map):
        if its.out_dim == dim and not its.prefix:
            return Sbp("S", axis)
    return P if role == "output" or dim in access.once or dim == access.part else B
