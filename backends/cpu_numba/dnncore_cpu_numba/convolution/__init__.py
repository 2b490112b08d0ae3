"""Convolution in three directions. `implementations` lists the implementations, best first.

No layer imports this operation. `reorder` imports its Winograd weights.
"""
