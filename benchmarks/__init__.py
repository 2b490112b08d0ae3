"""Programs that compare dnncore's speed with other libraries: `python -m benchmarks.<name>`.

Sub-packages: `problems`, `contestants`, `measuring`, `documents`.
"""
