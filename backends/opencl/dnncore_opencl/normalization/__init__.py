"""Batch, layer and group normalization. Operations: no other package imports them."""
