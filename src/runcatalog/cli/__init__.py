"""The subcommands of `catalog`, by what they do.

Every module has one handler per command and a function `add` that declares their options. Slow imports are in the
handlers, so that `--help` does not wait for them.
"""
