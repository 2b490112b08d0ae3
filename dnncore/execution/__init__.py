"""Primitives, bound calls and sequences, which run on streams."""
