"""Devices: their discovery, their limits, and what drivers of one vendor need."""
