"""Runs of many cases: their plan and order, worker processes, and what they found."""
