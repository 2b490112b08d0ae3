"""Devices: discovery, limits, and workarounds for drivers of one vendor.

The lowest layer: every other package may import it, and it imports none of them.
"""
