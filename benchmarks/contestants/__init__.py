"""The contestants: implementations of dnncore and of its peers, which are other libraries.

`contestant.py` has their common interface. Each `by_*.py` has one library. `onednn.py` wraps
oneDNN's C API.
"""
