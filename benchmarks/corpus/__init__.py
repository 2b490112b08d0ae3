"""The layers of networks from their papers, and random samples of them.

`networks()` in `registry.py` has all networks, and `draw` in `sample.py` draws problems.
"""
