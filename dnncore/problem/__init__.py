"""The problem text: an operation and its attributes as words, in the grammar of benchdnn.

    --conv --dir=FWD_D --stag=acdb --wtag=any --attr-post-ops=relu+sum:0.5 mb2ic3oc8_ih5kh3ph1

A driver (`--conv`) says which operation is meant, options (`--dir=FWD_D`) say how, and a shape
makes it one problem. The words are commands to a machine with a state: an option holds for all
shapes that follow it, until a driver is named again or `--reset` restores its defaults. An option
with values between commas makes one problem of each; of several, one of each combination.

The same text is a test's id, a filter, a line of input and the tail of a verbose line.
"""

from dnncore.problem.drivers import DRIVERS, driver_of
from dnncore.problem.problem import Problem
from dnncore.problem.reader import read, read_files

__all__ = ["DRIVERS", "Problem", "driver_of", "read", "read_files"]
