"""Measurement: worker processes, verified contests, samples in turn, a ledger."""
