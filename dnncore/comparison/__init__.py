"""Comparison of results: values of inputs, error bounds, comparison with the reference.

`testing` and `cli` may import it.
"""
