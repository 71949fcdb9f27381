"""A static site of the catalog that opens from disk, without a server."""
