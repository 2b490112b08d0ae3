"""The guide for backends: all its blocks, in their order, in one folder outside of this checkout.

A `diff` block is applied to the files there. The commands of a `console` block may fail, as the
guide shows; what they print must be what it shows.
"""

import os
import re
import subprocess

import pytest
from outside import ROOT, environment, wheel
from shown_output import COMMAND, difference

GUIDE = ROOT / "docs" / "write-a-backend.md"
BLOCK = re.compile(
    r"^```(console|diff|python)\n(.*?)^```$(?:\n+^```text\n(.*?)^```$)?", re.M | re.S
)
# pip installs without a network, and what is there is all that a package needs.
PIP = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_DEPS": "1"}


def steps():
    """Yield each step of the guide: its line, the arguments of a process, input, shown output."""
    text = GUIDE.read_text()

    def line(place):
        return text.count("\n", 0, place) + 1

    for block in BLOCK.finditer(text):
        language, content, shown = block.groups()
        if language == "console":
            for command in COMMAND.finditer(text, *block.span(2)):
                yield line(command.start()), ("/bin/sh", "-c", command[1]), "", command[2]
        elif language == "python":
            yield line(block.start()), ("python", "-c", content), "", shown or ""
        else:
            yield line(block.start()), ("git", "apply", "-"), content, ""


def printed(arguments, given, folder):
    """What a process prints, with errors."""
    # pytest does not shorten its summary where CI or BUILD_NUMBER is set.
    left_out = ("PYTHON", "PYTEST", "CI", "BUILD_NUMBER")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(left_out)}
    path = f"{folder / 'env' / 'bin'}:{os.environ['PATH']}"
    process = {**kept, **PIP, "PATH": path, "COLUMNS": "80", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        arguments, input=given, cwd=folder, env=process, text=True, timeout=240, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.stdout


def test_each_step_prints_what_the_guide_shows(tmp_path):
    environment(tmp_path / "env", wheel(ROOT, tmp_path))
    for line, arguments, given, shown in steps():
        found = printed(arguments, given, tmp_path)
        if differs := difference(shown, found):
            pytest.fail(f"{GUIDE.relative_to(ROOT)}:{line}: {differs}\nprinted:\n{found}")
