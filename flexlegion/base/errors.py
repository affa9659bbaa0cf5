"""The exceptions that flexlegion raises on purpose."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import ClassVar


class UserError(ValueError):
    """A mistake of the user's: one clear sentence; commands print it and exit with its status.

    As text it is one line that is safe to print, whatever names it quotes.
    """

    status: ClassVar[int] = 2

    def __str__(self) -> str:
        from flexlegion.base.quoting import printable

        return printable(super().__str__())


class CallError(UserError, TypeError):
    """A call that does not go with a function's parameters: Python's `TypeError`, in a sentence."""


class DoesNotApply(UserError):
    """A known strategy that a network or a machine has nothing for."""


class DivergenceError(UserError):
    """A loss that is no finite number: training has ended, as nothing good can come of it."""

    status: ClassVar[int] = 3


class NativeError(RuntimeError):
    """A failure that native code reported: not the user's mistake, unless a caller knows better."""
