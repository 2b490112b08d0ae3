"""The soak test: random problems in many threads for minutes or hours, while faults are injected.

`jobs` draws the problems, `faults` injects the faults, `levels` measures values that must not grow,
`watchdog` detects hangs, and `run` runs the test. `python -m dnncore.testing.soak` runs it.
"""
