"""Error that the command line prints as one line."""

from __future__ import annotations

from runcatalog.record.errors import UserError


class CatalogError(UserError):
    """An error that the user can correct; the message names the input and the expected value."""
