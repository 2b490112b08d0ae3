"""Programs to read and to run; tests and benchmarks import them as modules of this package."""
