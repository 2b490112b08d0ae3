"""Comparison of results: inputs to fill in, error bounds, the check against the reference.

`testing` and `cli` may import it.
"""
