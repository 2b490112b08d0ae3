"""The soak: random problems in many threads for minutes or hours, beside faults of all kinds.

`jobs` draws the problems, `faults` makes the faults, `levels` measures what may not grow,
`watchdog` notices hangs, and `run` puts them together. `python -m dnncore.testing.soak` runs it.
"""
