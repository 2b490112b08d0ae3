"""Devices: their discovery, their limits, and what drivers of one vendor need.

The lowest layer: every other package may import it, and it imports none of them.
"""
