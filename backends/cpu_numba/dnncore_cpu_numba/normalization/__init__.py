"""Batch, layer and group normalization. No other package imports these operations."""
