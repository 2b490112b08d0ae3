"""Programs in documents, and what the documents show of their output.

In a `console` block, a line that begins with `$` is a command of the shell, and the lines below it
show its output. `...` in an output matches any text, and all white space is equal.
"""

import doctest
import re

COMMAND = re.compile(r"^\$ (.*\n)((?:(?!\$ ).*\n)*)", re.M)
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.REPORT_NDIFF


def difference(shown, printed):
    """How an output differs from what a document shows; "" if it does not."""
    checker = doctest.OutputChecker()
    if checker.check_output(shown, printed, OPTIONS):
        return ""
    return checker.output_difference(doctest.Example("", shown), printed, OPTIONS)
