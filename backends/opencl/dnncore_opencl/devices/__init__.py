"""Devices: their discovery, limits, drivers' peculiarities, measured peaks and tuning tables.

The lowest layer: every other package may import it; it imports none of them.
"""
