"""How much lies between two signatures (OneFlow, Table 2)."""

from __future__ import annotations

from flexlegion.graph.signatures import Sbp


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
        In multiples of the tensor's size. Of what is read as P each device reads its own partial
        value; or if there are none, the first one reads all.
    """
    if before == after or before.kind == "B":
        return 0.0
    if before.kind == "S" and after.kind in ("S", "P"):
        return (parts - 1) / parts
    both = before.kind == "P" and after.kind == "B"
    return (2 if both else 1) * (parts - 1.0)
