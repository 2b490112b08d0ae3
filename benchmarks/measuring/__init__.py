"""Measurement: worker processes, verified contests, alternating samples, a ledger."""
