"""The error that the command line shows as one line."""

from __future__ import annotations


class CatalogError(Exception):
    """Something the user can put right; the message names it and says what would be right."""
