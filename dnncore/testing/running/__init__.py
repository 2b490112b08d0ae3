"""Runs of many cases: plans, the order of cases, and worker processes."""
