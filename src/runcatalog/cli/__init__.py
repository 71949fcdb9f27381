"""The subcommands of `catalog`, by what they do.

A module has a handler for each command and an `add` that declares their options. Imports that take time
are in the handlers: help must not wait for them.
"""
