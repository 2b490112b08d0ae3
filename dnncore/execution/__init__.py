"""Primitives, bound calls and sequences: what runs on streams."""
