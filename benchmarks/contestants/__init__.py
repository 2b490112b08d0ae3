"""Who can compute a problem: dnncore's implementations and its peers.

`contestant.py` has their common interface. `by_*.py` have one library each. `onednn.py` wraps
oneDNN's C API.
"""
