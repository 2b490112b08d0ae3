"""The problem text: an operation and its attributes as words, in the grammar of benchdnn.

    --conv --dir=FWD_D --stag=acdb --wtag=any --attr-post-ops=relu+sum:0.5 mb2ic3oc8_ih5kh3ph1

A driver (`--conv`) says which operation is meant, options (`--dir=FWD_D`) say how, and a shape
makes it one problem. The words are commands to a machine with a state: an option holds for all
shapes that follow it, until a driver is named again or `--reset` restores its defaults. An option
with values between commas makes one problem of each; of several, one of each combination. For the
= a blank may stand.

    --impl=PATTERN --skip-impl=PATTERN      the implementations that are meant
    --match=REGEX                           drops the problems in whose text, as benchdnn prints it
                                            (`matching.py`), it finds nothing, whatever the driver;
                                            an empty one and `--reset` end that
    --inplace=true                          the output is the memory of an input
    --batch=FILE                            the words of a file, beside the one that is being read
                                            or in the working directory
    --from-verbose=FILE                     the problems of verbose lines, dnncore's or oneDNN's
    n"NAME" behind a shape                  its name; quotes may be left out

Beyond benchdnn: formats may have strides and an offset, `ab@8x1@3` (`tensors.py`); a gradient's
format may follow its tensor's, `--dtag=abx:axb`; FWD_IB is inference with bias (`directions.py`);
`prh` is the padding at the end, where the output's size does not tell it (`windows.py`).

An empty value is the default. Options that steer benchdnn's own runs are read and ignored, and
those of features that dnncore does not have make problems `Unsupported` (`options.py`). With a
report `read` goes on behind these, behind problems that break a rule of their operation, `Invalid`,
and behind words that it cannot read, `Unreadable`.

The same text is a test's id, a filter and a line of input. Every operation has one, but for opaque
formats: `read(str(problem)) == [problem]`.
"""

from dnncore.problem.drivers import DRIVERS, driver_of
from dnncore.problem.problem import Problem
from dnncore.problem.reader import read, read_files, scan
from dnncore.problem.settings import Invalid, Unreadable, Unsupported

__all__ = ["DRIVERS", "Invalid", "Problem", "Unreadable", "Unsupported", "driver_of", "read",
           "read_files", "scan"]  # fmt: skip
