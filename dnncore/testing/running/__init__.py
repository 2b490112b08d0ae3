"""Runs of many cases: plans, the order of cases, and worker processes.

`testing`, `bad_input` and `cli` import it.
"""
