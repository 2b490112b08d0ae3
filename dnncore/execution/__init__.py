"""Primitives, bound calls and sequences, which run on streams.

`selection` and the layers above may import it.
"""
