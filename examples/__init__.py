"""Example programs. Tests and benchmarks import them as modules of this package."""
