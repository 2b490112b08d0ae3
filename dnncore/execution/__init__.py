"""Primitives, bound calls and sequences: what runs on streams.

`selection` and the layers above may import it.
"""
