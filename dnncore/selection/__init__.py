"""Plugins, the selection of implementations, and primitive descriptors.

`functional`, `comparison`, `testing` and `cli` may import it.
"""
