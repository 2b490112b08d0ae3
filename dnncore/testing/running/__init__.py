"""Runs of many cases: plans, order, worker processes, and results."""
