"""Runs of many cases: plans, order, worker processes, and results.

`testing`, `bad_input` and `cli` import it.
"""
