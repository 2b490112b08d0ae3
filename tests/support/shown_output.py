"""Programs in documents, and the outputs that the documents show.

In a `console` block, a line that begins with `$` is a shell command, and the lines below it show
its output. `...` in an output matches any text, and all white space is equal.
"""

import doctest
import re

COMMAND = re.compile(r"^\$ (.*\n)((?:(?!\$ ).*\n)*)", re.M)
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.REPORT_NDIFF


def difference(shown, printed):
    """Describe how an output differs from the one in a document; "" if they match."""
    checker = doctest.OutputChecker()
    if checker.check_output(shown, printed, OPTIONS):
        return ""
    return checker.output_difference(doctest.Example("", shown), printed, OPTIONS)
