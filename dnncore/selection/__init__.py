"""Plugins, and the selection of implementations, up to a primitive descriptor.

`functional`, `comparison`, `testing` and `cli` may import it.
"""
