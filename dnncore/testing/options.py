"""The options of the kit, all of which begin with --dnncore-."""

from __future__ import annotations

from typing import Any

__all__ = ["OPTIONS"]

OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("backend", {"metavar": "NAMES", "action": "append", "help": "the backends to check"}),
    ("size", {"metavar": "SIZE", "default": "smoke",
              "help": "the list of cases: tiny, smoke (default), full, networks, random or"
                      " claims"}),
    ("engine", {"metavar": "NAMES", "default": "",
                "help": "names of engines, such as opencl:1, gpu or words of a device's"
                        " description; default: all engines for which the backend has"
                        " implementations"}),
    ("match", {"metavar": "REGEX", "default": "",
               "help": "run only cases whose id contains a match"}),
    ("shard", {"metavar": "I/N", "default": "1/1",
               "help": "run the I-th of N shards of the cases"}),
    ("unsupported", {"metavar": "FILE", "action": "append",
                     "help": "cases to leave out permanently: lines PATTERN  # reason"}),
    ("xfail", {"metavar": "FILE", "action": "append",
               "help": "cases that are known to fail: lines PATTERN  # reason; the run fails if"
                       " one of them passes"}),
    ("floor", {"metavar": "N", "default": "",
               "help": "fail if fewer cases of a backend were executed; N is for each backend, and"
                       " a:300,b:30 for these; the default depends on the size"}),
    ("claims", {"metavar": "FILE", "default": "",
                "help": "fail if a problem does not reach its level in this file of claims; the"
                        " size claims runs only these problems"}),
    ("propose-claims", {"metavar": "FILE", "default": "",
                        "help": "add the problems and levels of this run to a file of claims"}),
    ("json", {"metavar": "FILE", "help": "write all results to a file"}),
    ("seed", {"metavar": "N", "type": int, "default": 0,
              "help": "the seed of the problems of size random, and of the order of cases with a"
                      " budget (default 0)"}),
    ("budget", {"metavar": "SECONDS", "type": float,
                "help": "run a sample: leave out cases that have not begun after this time; the"
                        " seed determines their order; one case of each operation, kind of"
                        " types, direction and engine is first and always runs"}),
    ("ledger", {"metavar": "FOLDER",
                "help": "record each case in FOLDER/COMMIT; leave out cases that are recorded"
                        " there and have not failed"}),
    ("commit", {"metavar": "ID", "default": "",
                "help": "the name of the source in the ledger; default: the checked-out commit"}),
    ("timeout", {"metavar": "SECONDS", "type": float, "default": 60.0,
                 "help": "the time limit of each check of a case (default 60)"}),
    ("skip-checks", {"metavar": "NAMES", "default": "",
                     "help": "checks to leave out because a runtime does not support them"}),
    ("saved", {"metavar": "FOLDER", "default": "",
               "help": "also repeat the calls that cross-checks saved in this folder"}),
    ("plugin", {"metavar": "MODULE", "action": "append",
                "help": "register a backend that is not installed"}),
    ("forbid", {"metavar": "REGEX", "default": "",
                "help": "fail a case that prints a match, such as a report of a sanitizer or a"
                        " simulator"}),
)  # fmt: skip
