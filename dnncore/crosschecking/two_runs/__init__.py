"""One program on two engines: which of its calls differ by rounding, and which are wrong.

`program.py` runs the program and records each call, `matching.py` finds the same calls of both
runs, `comparing.py` separates accumulated rounding from faults.
"""
