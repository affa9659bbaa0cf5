"""How much lies between two signatures (OneFlow, Table 2)."""

from __future__ import annotations

from flexlegion.notation.signatures import Sbp


def moved(before: Sbp, after: Sbp, parts: int) -> float:
    """What is moved if a tensor that lies in one way is read in another, by the same devices.

    Parameters
    ----------
    before, after
        Its signatures along an axis of the mesh.
    parts
        Devices along that axis.

    Returns
    -------
    float
        In multiples of the tensor's size. Of what is read as P there is a plan in which nothing
        moves: the first device reads, as of a B, or each its own part.
    """
    if before == after or before.kind == "B" or after.kind == "P":
        return 0.0
    if before.kind == "S" and after.kind == "S":
        return (parts - 1) / parts
    both = before.kind == "P" and after.kind == "B"
    return (2 if both else 1) * (parts - 1.0)
