"""Engines, streams and memories: where tensors lie and where work runs.

The CPU engine belongs to the core. Backends add other kinds.
"""
