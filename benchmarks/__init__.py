"""Programs that measure dnncore beside its peers: `python -m benchmarks.<name>`.

Sub-packages: `problems`, `contestants`, `measuring`, `documents`.
"""
