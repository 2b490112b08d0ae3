"""Engines, streams and memories: where tensors are stored and where primitives run.

The CPU engine belongs to the core. Backends add other kinds.

`execution`, `selection` and the layers above import it. Backends use `dnncore.backend`.
"""
