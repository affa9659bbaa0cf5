"""The exceptions that flexlegion raises on purpose."""


class UserError(ValueError):
    """A mistake of the user's: one clear sentence; commands print it and exit with status 2."""
