"""The generated pages of records, as one text or by path."""

from runcatalog.pages.render import Catalog


def joined(catalog: Catalog) -> str:
    """All pages, one after the other."""
    return "\n".join(catalog.pages.values())
