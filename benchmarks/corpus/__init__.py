"""The layers of networks from their papers, and random samples of them.

`networks()` in `registry.py` returns all networks. `draw` in `sample.py` draws problems.
"""
