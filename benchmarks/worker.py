"""Measures problems in a process of its own: settings in, a line of JSON out for each problem.

The process that starts it says in the environment how many threads all libraries use; they read it
when they are loaded. Settings: problems (texts), peers, reorders, samples.
"""

from __future__ import annotations

import json
import sys

from benchmarks.contest import measure
from dnncore.problem import read


def main() -> None:
    """Read settings from stdin and write outcomes to stdout, until the problems end."""
    settings = json.loads(sys.stdin.read())
    for text in settings.pop("problems"):
        (problem,) = read(text)
        print(json.dumps(measure(problem, **settings)), flush=True)


if __name__ == "__main__":
    main()
