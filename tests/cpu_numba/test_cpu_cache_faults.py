"""The CPU backend's code on disk: whatever is wrong with a file, it is compiled anew, never run."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba")

import dnncore_cpu_numba
from dnncore_cpu_numba.codegen.isa import AVAILABLE

from dnncore import planning
from dnncore.store import DIGEST_BYTES, DiskStore

pytestmark = pytest.mark.long

# Compiles some tasks and microkernels, and prints how many were compiled and how many were loaded.
PROGRAM = """
import numpy as np
import dnncore as dnn
a = np.arange(35, dtype=np.float32).reshape(5, 7)
b = np.arange(84, dtype=np.float32).reshape(7, 12)
assert (dnn.functional.matmul(a, b) == a @ b).all()
assert (dnn.functional.square(a) == a * a).all()
counts = dnn.cache.stats()
print(counts["compiled"], counts["from_disk"])
"""


def run(folder, **environment):
    """Run the program in a process of its own; returns (compiled, from disk)."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "DNNCORE_CACHE_DIR": str(folder), **environment},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return tuple(map(int, done.stdout.split()))


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A folder with the code of the program, which no test changes, and the number of its files."""
    folder = tmp_path_factory.mktemp("stored")
    compiled, loaded = run(folder)
    assert (compiled > 0, loaded) == (True, 0)
    return folder, compiled


def flipped(content, place):
    """The bytes with one bit of one of them changed."""
    changed = bytearray(content)
    changed[place] ^= 0x10
    return bytes(changed)


# What a file becomes, from its own content and another file's.
DAMAGES = {
    "the checksum": lambda own, _: flipped(own, 5),
    "the first byte of the object": lambda own, _: flipped(own, DIGEST_BYTES),
    "a byte of its code": lambda own, _: flipped(own, DIGEST_BYTES + 0x40),
    "a byte in the middle": lambda own, _: flipped(own, len(own) // 2),
    "the last byte": lambda own, _: flipped(own, -1),
    "half of it": lambda own, _: own[: len(own) // 2],
    "no more than a checksum": lambda own, _: own[:DIGEST_BYTES],
    "nothing": lambda _own, _: b"",
    "a byte more": lambda own, _: own + b"\0",
    "no checksum": lambda own, _: own[DIGEST_BYTES:],
    "another function": lambda _, other: other,
    "another function's object": lambda own, other: own[:DIGEST_BYTES] + other[DIGEST_BYTES:],
    "zeros": lambda own, _: bytes(len(own)),
}


def test_what_is_damaged_foreign_or_exchanged_is_compiled_anew(stored, tmp_path):
    folder, compiled = stored
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    files = sorted((tmp_path / "cpu_numba").iterdir())
    damages = list(DAMAGES.values())
    rounds = -(-len(damages) // len(files))
    for turn in range(rounds):
        contents = [file.read_bytes() for file in files]
        batch = damages[turn * len(files) : (turn + 1) * len(files)]
        for place, damage in enumerate(batch):
            files[place].write_bytes(damage(contents[place], contents[place - 1]))
        assert run(tmp_path) == (len(batch), compiled - len(batch))
    assert run(tmp_path) == (0, compiled)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="modes are POSIX's")
def test_code_that_others_could_have_written_is_compiled_anew(stored, tmp_path):
    folder, compiled = stored
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "cpu_numba").chmod(0o777)
    assert run(tmp_path) == (compiled, 0)


@pytest.mark.skipif(len(AVAILABLE) < 2, reason="this processor has one instruction set")
def test_code_for_another_instruction_set_is_not_taken(stored, tmp_path):
    lesser = AVAILABLE[1]
    source, first = stored
    shutil.copytree(source, tmp_path, dirs_exist_ok=True)
    folder = tmp_path / "cpu_numba"
    theirs = sorted(folder.iterdir())
    second, loaded = run(tmp_path, DNNCORE_MAX_CPU_ISA=lesser.name)
    assert second > loaded  # a lesser set's kernel may serve both
    ours = sorted(set(folder.iterdir()) - set(theirs))
    assert (len(theirs), len(ours)) == (first, second)
    for place, file in enumerate(ours):
        file.write_bytes(theirs[place % first].read_bytes())
    assert run(tmp_path, DNNCORE_MAX_CPU_ISA=lesser.name) == (second, loaded)


def test_a_change_of_any_byte_is_seen(tmp_path, monkeypatch):
    monkeypatch.setenv("DNNCORE_CACHE_DIR", str(tmp_path))
    store = DiskStore("some")
    content = bytes(range(256))
    store.put("key", content)
    (file,) = store.folder.iterdir()
    stored = file.read_bytes()
    for place in range(len(stored)):
        file.write_bytes(flipped(stored, place))
        assert store.get("key") is None
        file.write_bytes(stored[:place])
        assert store.get("key") is None
    file.write_bytes(stored)
    assert store.get("key") == content


SQUARES = """
import dnncore as dnn
import numpy as np
print(dnn.functional.square(np.float32([3.0]))[0])
"""


def test_an_edit_in_a_package_never_runs_stale_code(tmp_path):
    """A copy of the backend computes x * x, and x * x + 1 after an edit in a package."""
    package = Path(dnncore_cpu_numba.__file__).parent
    copy = shutil.copytree(package, tmp_path / "source" / package.name)
    environment = {
        **os.environ,
        "PYTHONPATH": str(copy.parent),
        "DNNCORE_CACHE_DIR": str(tmp_path / "cache"),
    }
    source = copy / "elementwise" / "formulas.py"
    formula = '"square": lambda x, alpha, beta: x * x'
    results = []
    for edited in (formula, f"{formula} + _ONE", formula):
        text = source.read_text()
        assert text.count(formula) == 1
        source.write_text(re.sub(re.escape(formula) + r"( \+ _ONE)?", edited, text))
        done = subprocess.run(
            [sys.executable, "-c", SQUARES],
            env=environment, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        results.append(float(done.stdout))
    assert results == [9, 10, 9]


KEYS = """
from dnncore import planning
planning.__file__ = {init!r}
from dnncore_cpu_numba.codegen import native
print(native._environment())
"""


def test_an_edit_of_shared_mathematics_changes_the_key_of_compiled_code(tmp_path):
    copy = shutil.copytree(Path(planning.__file__).parent, tmp_path / "planning")
    program = KEYS.format(init=str(copy / "__init__.py"))

    def key():
        return subprocess.check_output([sys.executable, "-c", program], timeout=120)

    before = key()
    assert key() == before
    with (copy / "toom_cook.py").open("a") as source:
        source.write("TAPS = 5\n")
    assert key() != before
