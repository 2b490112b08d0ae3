"""Changes by hand of a page or of a ledger are found, and absent records show as not measured."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import gpu, suite
from benchmarks.corpus.sample import Sample
from benchmarks.documents import check, gpu_document, history
from benchmarks.measuring import source_tree
from benchmarks.measuring.ledger import ChangedRow, Ledger
from benchmarks.problems.gpu_lines import GPU_LINES, GPU_SAMPLE
from benchmarks.problems.lines import record_of
from dnncore.problem import read

ROOT = Path(__file__).parents[2]
GPU = "benchmarks_gpu.md"
WHERE = {"device": "a GPU", "driver": "1.0", "cores": False, "date": "2026-01-02",
         "versions": ["torch 2.11.0"]}  # fmt: skip
DRAWN = [f"--eltwise --dir=FWD_I {n}x16x8x8" for n in (1, 2, 3)]
LISTED = [str(read(f"--conv --dir=FWD_I mb{n}_ic16oc32_ih8oh8kh3ph1")[0]) for n in (1, 2)]


def row(text, ratio):
    """A row of invented figures."""
    found = {"problem": text, "impl": "ours", "peer": "cudnn", "peer_impl": "theirs",
             "ratio": ratio, "ours_ms": 1.0, "peer_ms": ratio, "error": 3e-7, "ours_error": 1e-7,
             "peer_error": 3e-7, "share": None, "verified": 2}  # fmt: skip
    op = read(text)[0].op
    for who in ("ours", "peer"):
        milliseconds = found[f"{who}_ms"]
        found |= {f"{who}_gflops": op.flops / milliseconds / 1e6,
                  f"{who}_gbps": op.bytes / milliseconds / 1e6, f"{who}_scratchpad": 0}  # fmt: skip
    return found | WHERE


def records():
    """The keys and values of a ledger: lines, a sample, a program and all rows but one."""
    listed = Sample.of({"problems": LISTED, "skipped": {}, "networks": 0})
    lines = [replace(GPU_SAMPLE, draw=3), replace(GPU_LINES[0], sample=listed)]
    seeds = [{"seed": 4711, "problems": DRAWN, "skipped": {}, "networks": 61}]
    costs = [["a small kernel", 9.0, 8.0, "us"]]
    return {
        "l": {"problem": "lines", "lines": [record_of(line, full=True) for line in lines], **WHERE},
        "s": {"problem": "samples", "records": seeds, **WHERE},
        "c": {"problem": "gpu_costs", "figures": costs, **WHERE},
        **{text: row(text, 1.25) for text in DRAWN[:2]},
        **{text: row(text, 1.75) for text in LISTED},
    }


def write(folder, values):
    """Write a ledger and its page."""
    path = folder / "gpu.jsonl"
    path.unlink(missing_ok=True)
    ledger = Ledger(path)
    for key, value in values.items():
        ledger.put(key, value)
    (folder / GPU).write_text(check.gpu_page(path))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a ledger and its page."""
    monkeypatch.delitem(check.PAGES, "cpu.jsonl")
    write(tmp_path, records())
    return tmp_path


def checked(folder):
    """The exit status and the output of the check."""
    words = [f"--ledgers={folder}", f"--docs={folder}"]
    ended = CliRunner().invoke(check.main, words, catch_exceptions=False)
    return ended.exit_code, ended.output


# -- forgeries -------------------------------------------------------------------------------------


def edit(name, old, new):
    """A change of the first such text in a file."""

    def change(folder):
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))

    return change


def lines(change):
    """A change of the list of lines of the ledger."""

    def changed(folder):
        found = (folder / "gpu.jsonl").read_text().splitlines()
        (folder / "gpu.jsonl").write_text("".join(f"{line}\n" for line in change(found)))

    return changed


def both(*changes):
    return lambda folder: [change(folder) for change in changes]


def chained_anew(old, new):
    """A change of a value in the ledger, with new digests, and in the page but for its digest."""

    def change(folder):
        before = Ledger(folder / LEDGER).last
        assert old in json.dumps(records())
        write(folder, json.loads(json.dumps(records()).replace(old, new)))
        edit(GPU, Ledger(folder / LEDGER).last, before)(folder)

    return change


def removed(*names):
    return lambda folder: [(folder / name).unlink() for name in names]


LEDGER = "gpu.jsonl"
FIGURE = edit(LEDGER, '"ratio": 1.75', '"ratio": 1.95')
DIFFERS, IS_NO_JSON = "its digest differs", "expected a key, a value and a digest as JSON"
FORGERIES = {
    "figure in the page": (edit(GPU, "| 1.75 |", "| 1.95 |"), "1.95"),
    "figure in the ledger": (FIGURE, "gpu.jsonl:6: --conv"),
    "figure in both": (both(FIGURE, edit(GPU, "| 1.75 |", "| 1.95 |")), DIFFERS),
    "figure in both, with new digests":
        (chained_anew("1.75", "1.95"), "\n+`"),
    "deleted line": (lines(lambda found: found[:4] + found[5:]), "gpu.jsonl:5"),
    "deleted first line": (lines(lambda found: found[1:]), "gpu.jsonl:1"),
    "deleted last line": (lines(lambda found: found[:-1]), "from the 6 lines"),
    "deleted sample": (lines(lambda found: found[:1] + found[2:]), "gpu.jsonl:2"),
    "reordered lines": (lines(lambda found: [*found[:3], found[4], found[3], *found[5:]]), ":4: "),
    "duplicated line": (lines(lambda found: [*found[:5], *found[4:]]), "gpu.jsonl:6"),
    "duplicated last line": (lines(lambda found: [*found, found[-1]]), "gpu.jsonl:8"),
    "broken JSON": (edit(LEDGER, '{"problem": "samples"', '{"problem": samples"'), IS_NO_JSON),
    "a line of another kind": (lines(lambda found: [*found[:2], "7", *found[2:]]), IS_NO_JSON),
    "an empty line": (lines(lambda found: [*found[:2], "", *found[2:]]), "gpu.jsonl:3"),
    "bytes that are no text": (lambda folder: (folder / LEDGER).write_bytes(b"\xff\n"), IS_NO_JSON),
    "cut last line": (lambda folder: (folder / LEDGER).write_text(
        (folder / LEDGER).read_text()[:-9]), "the last line is incomplete"),
    "text after the last line": (lambda folder: (folder / LEDGER).write_text(
        (folder / LEDGER).read_text() + "7"), "the last line is incomplete"),
    "goal in the page": (edit(GPU, "| >= 1.2, all", "| >= 1, all"), ">= 1.2, all but 2"),
    "goal in the ledger": (edit(LEDGER, '"goal": 1.2', '"goal": 1.0'), DIFFERS),
    "verdict": (edit(GPU, "holds so far", "holds"), "holds so far"),
    "device in the page": (edit(GPU, "## a GPU", "## another GPU"), "+## a GPU"),
    "version in the page": (edit(GPU, "torch 2.11.0", "torch 2.12.0"), "+Driver 1.0"),
    "version in the ledger": (edit(LEDGER, "torch 2.11.0", "torch 2.12.0"), DIFFERS),
    "verification": (edit(LEDGER, '"verified": 2', '"verified": 1'), DIFFERS),
    "error in the page": (edit(GPU, "| 1.0e-07 |", "| 1.0e-08 |"), "1.0e-08"),
    "error in the ledger": (edit(LEDGER, '"ours_error": 1e-07', '"ours_error": 1e-08'), DIFFERS),
    "seed in the page": (edit(GPU, "--seed=4711", "--seed=4712"), "--seed=4711"),
    "seed in the ledger": (edit(LEDGER, '"seed": 4711', '"seed": 4712'), DIFFERS),
    "digest in the page": (edit(GPU, "last line is\n`", "last line is\n`0"), "`0"),
    "deleted ledger": (removed(LEDGER), "expected benchmarks/ledgers/gpu.jsonl"),
    "deleted page": (removed(GPU), "benchmarks_gpu.md: the page does not exist"),
    "deleted page and ledger": (removed(GPU, LEDGER), "the page does not exist"),
    "unknown ledger": (lambda folder: (folder / "b.jsonl").touch(), "b.jsonl: expected only"),
}  # fmt: skip


def test_unchanged_pages_are_right(folder):
    assert checked(folder) == (0, "")


@pytest.mark.parametrize(("forge", "found"), FORGERIES.values(), ids=FORGERIES)
def test_a_forgery_is_found(folder, forge, found):
    forge(folder)
    status, output = checked(folder)
    assert status == 1
    assert found in output


# -- absent records, and the chain -----------------------------------------------------------------


def goals(folder):
    text = (folder / GPU).read_text()
    return text, {part[1].strip(): part for line in text.splitlines()
                  if len(part := line.split("|")) > 2}  # fmt: skip


def test_drawn_layers_without_a_row_are_counted(folder):
    row = goals(folder)[1]["Sample of 40 layers, f32, seed 4711"]
    assert row[-3:-1] == [" 2 of 3, 1 not measured ", " holds so far "]
    left_out = {"problem": DRAWN[2], "left_out": "torch: has none", **WHERE}
    write(folder, records() | {DRAWN[2]: left_out})
    row = goals(folder)[1]["Sample of 40 layers, f32, seed 4711"]
    assert row[-3:-1] == [" 2 of 3, 1 left out ", " holds "]


def test_absent_records_show_as_not_measured(folder):
    values = records()
    for key in ("s", "c", *LISTED):
        del values[key]
    write(folder, values)
    text, rows = goals(folder)
    sample, listed = rows[GPU_SAMPLE.title], rows[GPU_LINES[0].title]
    assert sample[2] == " >= 1.2, all but 2 >= 0.6 "
    assert sample[-3:-1] == [" 0 of 3, 3 not measured ", " not measured "]
    assert listed[-3:-1] == [" 0 of 2, 2 not measured ", " not measured "]
    assert "Not measured: AlexNet's training step; Launches and starts;" in text


def test_lines_without_a_record_are_those_of_the_source(folder):
    values = records()
    del values["l"]
    write(folder, values)
    assert {line.title for line in GPU_LINES} < goals(folder)[1].keys()


def test_a_run_records_the_lines_of_the_source_if_they_are_new(folder, monkeypatch):
    where = {"device": "a GPU", "cores": False}
    monkeypatch.setattr(gpu, "circumstances", lambda _engine: where)

    def recorded():
        ledger = Ledger(folder / LEDGER)
        gpu.Run("opencl:0", ledger, peers=(), samples=1, seconds=1).record_lines(full=True)
        return ledger.count

    before = (folder / LEDGER).read_text()
    assert [recorded(), recorded()] == [8, 8]
    assert (folder / LEDGER).read_text().startswith(before)
    (figures,) = gpu_document.devices(Ledger(folder / LEDGER).values()).values()
    assert [line.goal for line in figures.lines[1:]] == [line.goal for line in GPU_LINES]


@pytest.mark.parametrize("known", [True, False])
def test_a_later_run_adds_to_the_chain(tmp_path, known):
    path = tmp_path / LEDGER
    Ledger(path).put("a", {"problem": "a", "ratio": 1.0})
    before = path.read_text()
    path.write_text(before + '["half a li')  # like after a crash of the machine
    ledger = Ledger(path, known=known)
    assert ledger.keys() == (["a"] if known else [])
    for key in ("a", "b"):
        ledger.put(key, {"problem": key, "ratio": 2.0})
    assert path.read_text().startswith(before)
    again = Ledger(path)
    assert [value["ratio"] for value in again.values()] == [2.0, 2.0]
    assert (again.count, again.last, again.cut) == (3, ledger.last, "")
    ledger.finish()
    ledger.put("c", {"problem": "c"})
    assert Ledger(path).count == 1


def test_values_are_the_same_after_reading(tmp_path):
    """Also numbers as names, tuples, infinities and letters beyond ASCII."""
    path = tmp_path / LEDGER
    values = {"k": {10: (1, 2), 9: float("inf"), "name": "µs\u2028\n"}, "l": [0.1 + 0.2, None]}
    for key, value in values.items():
        Ledger(path).put(key, value)
    assert Ledger(path).values() == [json.loads(json.dumps(value)) for value in values.values()]
    assert len(path.read_text().splitlines()) == 2


def test_a_line_with_a_name_twice_is_refused(tmp_path):
    """A reader would see another figure than the page."""
    path = tmp_path / LEDGER
    Ledger(path).put("a", {"ratio": 1.0})
    path.write_text(path.read_text().replace('{"ratio"', '{"ratio": 2.0, "ratio"'))
    with pytest.raises(ChangedRow, match=r"gpu\.jsonl:1: a must be as it was measured"):
        Ledger(path)


def test_a_second_process_does_not_break_the_chain(tmp_path):
    path = tmp_path / LEDGER
    first, second = Ledger(path), Ledger(path)
    first.put("a", {"ratio": 1.0})
    with pytest.raises(ChangedRow, match="Another process has changed the file"):
        second.put("b", {"ratio": 1.0})
    assert Ledger(path).keys() == ["a"]


@pytest.mark.parametrize("command", [gpu.main, suite.main])
def test_a_run_with_a_changed_ledger_ends_with_an_error(tmp_path, monkeypatch, command):
    path = tmp_path / LEDGER
    path.write_text("7\n")
    monkeypatch.setattr(suite, "default_path", lambda: path)
    words = [f"--ledger={path}"] if command is gpu.main else []
    ended = CliRunner().invoke(command, words, catch_exceptions=False)
    assert ended.exit_code == 1
    assert "gpu.jsonl:1: expected a key, a value and a digest as JSON; got '7'" in ended.output


# -- digests that were computed again --------------------------------------------------------------


def test_a_ratio_must_follow_from_the_times(folder):
    write(folder, json.loads(json.dumps(records()).replace('"ratio": 1.75', '"ratio": 1.95')))
    status, output = checked(folder)
    assert status == 1
    assert "ratio of --conv" in output
    assert "must be 1.75, by its times; got 1.95" in output


def test_a_rate_must_follow_from_the_times(folder):
    anew = records()
    anew[DRAWN[0]]["ours_gbps"] *= 1.01
    write(folder, anew)
    status, output = checked(folder)
    assert status == 1
    assert "ours_gbps of --eltwise" in output


def git(folder, *words):
    name = ("-c", "user.name=a", "-c", "user.email=a@b.example")
    subprocess.run(["git", *name, *words], cwd=folder, check=True, capture_output=True)


def commit(folder):
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=figures")


@pytest.mark.parametrize("committed", [True, False])
def test_a_committed_line_must_stay(folder, committed):
    """Even if all figures, all digests and the page fit together."""
    git(folder, "init", "--quiet")
    commit(folder)
    grown = records() | {DRAWN[2]: row(DRAWN[2], 1.5)}
    write(folder, grown)
    commit(folder)
    assert checked(folder) == (0, "")
    write(folder, grown | {DRAWN[1]: row(DRAWN[1], 1.95)})
    if committed:
        commit(folder)
    status, output = checked(folder)
    assert status == 1
    assert "a ledger only grows" in output


@pytest.mark.parametrize(("ratio", "found"), [(1.3, False), (1.95, True), (0.9, True)])
def test_a_later_row_of_a_key_must_agree(folder, ratio, found):
    """The page has the last row of a key. It may differ as two measurements do."""
    ledger = Ledger(folder / "gpu.jsonl")
    ledger.put(DRAWN[1], row(DRAWN[1], ratio))
    (folder / GPU).write_text(check.gpu_page(folder / "gpu.jsonl"))
    status, output = checked(folder)
    assert status == int(found)
    assert ("measured twice under the same circumstances" in output) == found


@pytest.mark.parametrize("names", [("ours_ms", "peer_ms"), ("ours_error",), ("peer_error",)])
def test_a_later_row_of_a_key_must_agree_in_times_and_in_errors(folder, names):
    """Times of both sides that are less by the same factor leave the ratio as it was."""
    ledger = Ledger(folder / "gpu.jsonl")
    later = dict(records()[DRAWN[1]])
    for name in names:
        later[name] /= 1.5
        for rate in (name.replace("_ms", "_gflops"), name.replace("_ms", "_gbps")):
            if rate != name and later.get(rate):
                later[rate] *= 1.5
    ledger.put(DRAWN[1], later)
    (folder / GPU).write_text(check.gpu_page(folder / "gpu.jsonl"))
    status, output = checked(folder)
    assert status == 1
    assert all(f"with {name} " in output for name in names)


def test_a_key_has_one_problem(folder):
    """The key of a row whose ratio is better, and the text of another problem of the same size."""
    ledger = Ledger(folder / "gpu.jsonl")
    ledger.put(LISTED[0], row(LISTED[0], 1.75) | {"problem": LISTED[1]})
    (folder / GPU).write_text(check.gpu_page(folder / "gpu.jsonl"))
    status, output = checked(folder)
    assert status == 1
    assert f"{LISTED[1]} has the key of {LISTED[0]}; each problem has its own" in output


@pytest.mark.parametrize(("key", "change"), [
    ("c", lambda record: record | {"figures": [["a small kernel", 4.5, 8.0, "us"]]}),
    ("l", lambda record: record | {"lines": [{**line, "goal": 1.0} for line in record["lines"]]}),
])  # fmt: skip
def test_later_figures_of_programs_and_goals_must_agree(folder, key, change):
    """Also figures within lists, and a goal exactly."""
    ledger = Ledger(folder / "gpu.jsonl")
    ledger.put(key, change(records()[key]))
    (folder / GPU).write_text(check.gpu_page(folder / "gpu.jsonl"))
    status, output = checked(folder)
    assert status == 1
    assert "measured twice under the same circumstances" in output


# -- sources ---------------------------------------------------------------------------------------

GIVEN = "".join(f"{n}" for n in range(8)) * 8  # a digest of no sources


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A clone with sources, and with a ledger and a page, all committed."""
    for name in ("dnncore/core.py", "backends/opencl/kernel.cl", "dnncore/testing/kit.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("1\n")
    monkeypatch.delitem(check.PAGES, "cpu.jsonl")
    git(tmp_path, "init", "--quiet")
    write(tmp_path, of_sources(records(), tmp_path))
    commit(tmp_path)
    return tmp_path


def of_sources(values, folder):
    digest = source_tree.of_files(folder)
    return {key: value | {"sources": digest} for key, value in values.items()}


def added(folder, key, value):
    """The status and the output of the check after a row was added to the ledger and the page."""
    Ledger(folder / LEDGER).put(key, value)
    (folder / GPU).write_text(check.gpu_page(folder / LEDGER))
    return checked(folder)


def changed_sources(folder, name="backends/opencl/kernel.cl"):
    (folder / name).write_text("2\n")


def test_files_and_commits_have_one_digest(clone):
    listing = subprocess.run(
        ["git", "ls-tree", "-r", "HEAD", "--", *source_tree.FOLDERS],
        cwd=clone, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    before = source_tree.of_files(clone)
    assert source_tree.of_listing(listing) == before
    changed_sources(clone, "dnncore/testing/kit.py")  # which computes no figure
    assert source_tree.of_files(clone) == before
    changed_sources(clone)
    assert source_tree.of_files(clone) != before


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("first", [True, False])
def test_other_sources_may_show_progress(clone, committed, first):
    """A row may be measured before or after its sources are committed."""
    changed_sources(clone)
    if first:
        commit(clone)
    (faster,) = of_sources({"a": row(DRAWN[0], 2.5)}, clone).values()
    found = added(clone, "another key", faster)
    if committed:
        commit(clone)
        found = checked(clone)
    assert found == (0, "")


@pytest.mark.parametrize("committed", [True, False])
def test_the_same_sources_show_no_progress(clone, committed):
    """Whatever the key of the row."""
    (faster,) = of_sources({"a": row(DRAWN[0], 2.5)}, clone).values()
    status, output = added(clone, "another key", faster)
    if committed:
        commit(clone)
        status, output = checked(clone)
    assert status == 1
    assert "measured twice under the same circumstances, with ratio 1.25 and 2.5" in output


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("key", ["another key", "c"])
def test_sources_must_be_those_of_the_time(clone, committed, key):
    """Neither invented ones nor those of former times; rows of programs, too."""
    changed_sources(clone)
    commit(clone)
    old = of_sources(records(), clone)[DRAWN[1]]
    assert added(clone, "later", old)[0] == 0
    changed_sources(clone, "dnncore/core.py")
    commit(clone)
    values = records() | {"another key": row(DRAWN[0], 2.5)}
    status, output = added(clone, f"{key} again", values[key] | {"sources": GIVEN})
    if committed:
        commit(clone)
        status, output = checked(clone)
    assert status == 1
    assert "must have been measured with sources that were committed since" in output


def test_without_the_history_nobody_can_tell(clone, tmp_path):
    changed_sources(clone)
    commit(clone)
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{clone}", str(shallow))
    assert checked(shallow) == (0, "")


def test_new_rows_have_sources(folder, monkeypatch):
    monkeypatch.setattr(history, "WITHOUT_SOURCES", {LEDGER: len(records())})
    assert checked(folder) == (0, "")
    status, output = added(folder, "another key", row(DRAWN[0], 1.3))
    assert status == 1
    assert f"{DRAWN[0]} must have the digest of its sources; measure again" in output


def test_no_new_row_is_exempt():
    """The number of lines without sources is that of the ledgers at the time of the rule."""
    for name, count in history.WITHOUT_SOURCES.items():
        lines = (ROOT / "benchmarks" / "ledgers" / name).read_text().splitlines()
        assert len(lines) >= count
        assert all('"sources"' in line for line in lines[count:] if '"ours_ms"' in line)
