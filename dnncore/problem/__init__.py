"""The problem text: an operation and its attributes as words, in the grammar of benchdnn.

    --conv --dir=FWD_D --stag=acdb --wtag=any --attr-post-ops=relu+sum:0.5 mb2ic3oc8_ih5kh3ph1

A driver (`--conv`) names the operation, options (`--dir=FWD_D`) set its properties, and a shape
completes a problem. An option applies to all shapes after it, until the next driver or `--reset`
restores the defaults. If an option has several values, separated by commas, each value gives a
problem. If several options have several values, each combination gives a problem. A blank may
replace the =.

    --impl=PATTERN --skip-impl=PATTERN      the implementations to use and to leave out
    --knobs=NAME:VALUE+NAME:VALUE           parameters of an implementation
                                            before the first driver, these three apply to all
                                            problems; they also apply to --from-verbose
    --match=REGEX                           keeps only problems whose text, as printed by benchdnn
                                            (`matching.py`), contains a match; applies to all
                                            drivers, until an empty value or `--reset`
    --inplace=true                          the output is the memory of an input
    --batch=FILE                            reads the words of a file in the folder of the present
                                            file or in the working directory
    --from-verbose=FILE                     reads the problems of verbose lines of dnncore or oneDNN
    n"NAME" after a shape                   its name; quotes may be left out

dnncore extends benchdnn's grammar. Formats may have strides and an offset, `ab@8x1@3`
(`tensors.py`). The format of a gradient may follow that of its tensor, `--dtag=abx:axb`. FWD_IB is
inference with bias (`directions.py`). `prh` is the padding at the end, if the size of the output
does not determine it (`windows.py`).

An empty value is the default. Options that control benchdnn's own runs are read and ignored. An
option for a feature that dnncore does not have makes the problem `Unsupported` (`options.py`). A
problem that breaks a rule of its operation is `Invalid`. A word that cannot be read is
`Unreadable`. With a report, `read` continues after all of these.

The text of a problem is used as test id and as input of benchmarks. Every operation without opaque
formats has a text: `read(str(problem)) == [problem]`.

`comparison`, `testing` and `cli` import it.
"""

from dnncore.problem.drivers import DRIVERS, driver_of
from dnncore.problem.problem import Problem
from dnncore.problem.reader import read, read_files, scan
from dnncore.problem.settings import Invalid, Unreadable, Unsupported

__all__ = ["DRIVERS", "Invalid", "Problem", "Unreadable", "Unsupported", "driver_of", "read",
           "read_files", "scan"]  # fmt: skip
