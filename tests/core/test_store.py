"""The disk store: what it returns, whom it trusts, and how large it becomes."""

import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import time
import types
import warnings
from pathlib import Path

import pytest
from click.testing import CliRunner

import dnncore as dnn
from dnncore import private_folder
from dnncore.cli import main
from dnncore.store import DiskStore, _budget, cache_root

STRANGER = 12345
posix = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="owners and modes are POSIX's")


@pytest.fixture
def root(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("DNNCORE_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def store(root):
    return DiskStore("test")


@pytest.fixture
def give_away(monkeypatch):
    """Give a path to another user. Without the rights for that, its status only says so."""
    strange = set()

    def disguised(call):
        def status(*args, **kwargs):
            found = call(*args, **kwargs)
            if found.st_ino not in strange:
                return found
            names = [name for name in dir(found) if name.startswith("st_")]
            values = {name: getattr(found, name) for name in names}
            return types.SimpleNamespace(**{**values, "st_uid": STRANGER})

        return status

    def give(path):
        if os.geteuid() == 0:
            os.chown(path, STRANGER, -1, follow_symlinks=False)
        else:
            strange.add(path.lstat().st_ino)

    if os.geteuid() != 0:
        for name in ("fstat", "lstat"):
            monkeypatch.setattr(os, name, disguised(getattr(os, name)))
    return give


def filled(*keys):
    """A store with entries, and its folder."""
    store = DiskStore("test")
    for key in keys:
        store.put(key, f"content of {key}".encode())
    return store.folder


def refused(match):
    """A new store cannot be used; it warns once and goes on."""
    store = DiskStore("test")
    with pytest.warns(dnn.CacheWarning, match=f"{match}.*nothing is stored"):
        assert store.get("a") is None
    store.put("a", b"x")
    assert store.get("a") is None
    assert store.folder is None


def emptied(match):
    """A new store finds nothing, warns, and can be used."""
    store = DiskStore("test")
    with pytest.warns(dnn.CacheWarning, match=f"was emptied: {match}"):
        assert store.get("a") is None
    assert list(store.folder.iterdir()) == []
    store.put("a", b"new")
    assert DiskStore("test").get("a") == b"new"


# -- contents --------------------------------------------------------------------------------------


def test_what_is_put_is_got_by_another_store(store):
    assert store.get("key") is None
    store.put("key", b"content")
    assert DiskStore("test").get("key") == b"content"
    assert DiskStore("other").get("key") is None
    store.put("key", b"newer")
    assert store.get("key") == b"newer"


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[:40] + bytes([data[40] ^ 1]) + data[41:],
        lambda data: b"",
        lambda data: data + b"x",
    ],
    ids=["truncated", "flipped-bit", "empty", "longer"],
)
def test_damaged_files_are_misses(store, damage):
    store.put("key", b"0123456789" * 10)
    (path,) = store.folder.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert store.get("key") is None


def test_a_file_under_another_key_is_a_miss(store):
    store.put("a", b"content")
    (path,) = store.folder.iterdir()
    store.put("b", b"other")
    (target,) = set(store.folder.iterdir()) - {path}
    target.write_bytes(path.read_bytes())
    assert store.get("b") is None


def test_a_folder_that_is_removed_is_made_again(store, root):
    store.put("a", b"x")
    shutil.rmtree(root)
    assert store.get("a") is None
    store.put("a", b"y")
    assert store.get("a") == b"y"


def test_a_store_without_owners_and_open_folders_works_by_paths(store, root, monkeypatch):
    """As on Windows."""
    monkeypatch.setattr(private_folder, "POSIX", False)
    store.put("a", b"x")
    store.put("a", b"y")
    assert DiskStore("test").get("a") == b"y"
    assert CliRunner().invoke(main, ["cache", "clear"]).exit_code == 0
    assert store.get("a") is None
    (root / "test").rmdir()
    (root / "test").symlink_to(root)
    refused("is a symbolic link")


# -- switches --------------------------------------------------------------------------------------


def test_the_store_can_be_switched_off(store, monkeypatch, root):
    monkeypatch.setenv("DNNCORE_DISK_CACHE", "0")
    off = DiskStore("test")
    off.put("key", b"x")
    assert off.get("key") is None
    assert off.folder is None
    assert not root.exists()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("DNNCORE_DISK_CACHE", "no"),
        ("DNNCORE_DISK_CACHE", "2"),
        ("DNNCORE_CACHE_MAX_BYTES", "-1"),
        ("DNNCORE_CACHE_MAX_BYTES", "1e9"),
        ("DNNCORE_CACHE_MAX_BYTES", "9" * 30),
        ("DNNCORE_CACHE_MAX_BYTES", "many"),
    ],
)
def test_an_invalid_switch_disables_the_store_with_a_warning(root, monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    refused(f"{variable} must be .*; got '{value}'")
    assert not root.exists()


@pytest.mark.parametrize(
    "variable", ["DNNCORE_DISK_CACHE", "DNNCORE_CACHE_MAX_BYTES", "DNNCORE_CACHE_DIR"]
)
def test_an_empty_switch_means_the_default(root, monkeypatch, tmp_path, variable):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    monkeypatch.setenv(variable, "")
    store = DiskStore("test")
    store.put("a", b"x")
    assert store.get("a") == b"x"
    assert tmp_path in store.folder.parents


def test_a_store_that_cannot_be_written_warns_and_goes_on(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("DNNCORE_CACHE_DIR", str(tmp_path / "file"))
    refused("file is not a folder; set DNNCORE_CACHE_DIR to a folder")


def test_a_store_warns_once(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("DNNCORE_CACHE_DIR", str(tmp_path / "file"))
    store = DiskStore("test")
    with pytest.warns(dnn.CacheWarning):
        store.put("a", b"x")
    store._usable = True
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.put("a", b"x")


def test_a_relative_path_is_resolved_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DNNCORE_CACHE_DIR", "relative-cache-of-this-test")
    store = DiskStore("test")
    store.put("a", b"x")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert store.get("a") == DiskStore("test").get("a") == b"x"
    assert cache_root() == tmp_path / "relative-cache-of-this-test"
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_without_a_home_nothing_is_stored_in_the_working_directory(tmp_path):
    """A user without a home folder, as in containers with a random user number."""
    program = """
import os, pwd, sys, warnings
def unknown(number): raise KeyError(number)
pwd.getpwuid = unknown
from dnncore.store import DiskStore
with warnings.catch_warnings(record=True) as found:
    store = DiskStore("test")
    store.put("a", b"x")
print(store.folder, [str(w.message) for w in found])
"""
    names = ("HOME", "XDG_CACHE_HOME", "DNNCORE_CACHE_DIR")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert "None" in done.stdout
    assert "home" in done.stdout
    assert "set DNNCORE_CACHE_DIR" in done.stdout
    assert list(tmp_path.iterdir()) == []


# -- whom it trusts --------------------------------------------------------------------------------


@posix
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_new_folders_and_files_are_private_whatever_the_umask(tmp_path, monkeypatch, umask):
    monkeypatch.setenv("DNNCORE_CACHE_DIR", str(tmp_path / "one" / "two"))
    before = os.umask(umask)
    try:
        folder = filled("a")
    finally:
        os.umask(before)
    for path in (folder, folder.parent, folder.parent.parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    (file,) = folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert DiskStore("test").get("a") == b"content of a"


@posix
def test_a_folder_that_others_can_read_becomes_private(root):
    folder = filled("a")
    folder.chmod(0o755)
    assert DiskStore("test").get("a") == b"content of a"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@posix
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
def test_a_folder_that_others_could_write_to_is_emptied(root, mode):
    folder = filled("a", "b")
    folder.chmod(mode)
    emptied(r"other users could write to it \(mode ")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@posix
def test_a_folder_that_becomes_open_in_the_course_of_the_process_is_emptied(root):
    store = DiskStore("test")
    store.put("a", b"x")
    store.folder.chmod(0o777)
    with pytest.warns(dnn.CacheWarning, match="other users could write"):
        assert store.get("a") is None


@posix
@pytest.mark.parametrize("mode", [0o777, 0o755])
def test_a_folder_with_the_users_own_things_is_refused_and_not_emptied(root, mode):
    folder = root / "test"
    folder.mkdir(parents=True)
    (folder / "thesis.txt").write_text("ten years")
    folder.chmod(mode)
    refused("contains 'thesis.txt', which is no entry of a store")
    assert (folder / "thesis.txt").read_text() == "ten years"
    assert stat.S_IMODE(folder.stat().st_mode) == mode


@posix
def test_a_folder_of_another_user_is_refused(root, give_away):
    give_away(filled("a"))
    refused(f"belongs to user {STRANGER}")


@posix
def test_a_file_of_another_user_empties_the_store(root, give_away):
    folder = filled("a", "b")
    (one, _) = folder.iterdir()
    give_away(one)
    emptied(f"it contains a file of user {STRANGER}")


@posix
def test_a_file_of_another_user_that_appears_later_is_not_read(root, give_away):
    store = DiskStore("test")
    store.put("a", b"x")
    (file,) = store.folder.iterdir()
    give_away(file)
    with pytest.warns(dnn.CacheWarning, match=f"a file of user {STRANGER}"):
        assert store.get("a") is None
    assert not file.exists()


@posix
def test_a_strange_file_of_another_user_refuses_the_store(root, give_away):
    folder = filled("a")
    (folder / "note").write_text("hello")
    give_away(folder / "note")
    refused("contains 'note', which is no entry of a store")
    assert (folder / "note").exists()


@posix
def test_a_file_that_others_can_write_to_is_not_read(root):
    folder = filled("a")
    (file,) = folder.iterdir()
    file.chmod(0o666)
    emptied("it contains a file that other users can write to")


def to_a_link(file):
    """Exchange an entry for a link to a valid one elsewhere."""
    target = file.parent.parent / "elsewhere"
    file.rename(target)
    file.symlink_to(target)


def to_a_pipe(file):
    file.unlink()
    os.mkfifo(file)


def to_a_folder(file):
    file.unlink()
    file.mkdir()


@posix
@pytest.mark.timeout(20)
@pytest.mark.parametrize("change", [to_a_link, to_a_pipe, to_a_folder])
def test_an_entry_that_is_no_file_is_not_followed_and_does_not_block(root, change):
    (file,) = filled("a").iterdir()
    change(file)
    match = "directory|permitted" if change is to_a_folder else "something that is not a file"
    with pytest.warns(dnn.CacheWarning, match=match):
        assert DiskStore("test").get("a") is None


@posix
@pytest.mark.timeout(20)
@pytest.mark.parametrize("change", [to_a_link, to_a_pipe, to_a_folder])
@pytest.mark.filterwarnings("ignore::dnncore.CacheWarning")
def test_an_entry_that_becomes_something_else_later_is_not_followed(root, change):
    store = DiskStore("test")
    store.put("a", b"x")
    (file,) = store.folder.iterdir()
    change(file)
    assert store.get("a") is None


# -- the path to it --------------------------------------------------------------------------------


@posix
@pytest.mark.parametrize("mode", [0o777, 0o702])
@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_parent_that_others_can_write_to_is_refused(tmp_path, monkeypatch, mode, level):
    monkeypatch.setenv("DNNCORE_CACHE_DIR", str(tmp_path / "one" / "two"))
    parent = filled("a").parents[level]
    parent.chmod(mode)
    refused(f"other users can write to {parent} .mode {mode:o}.")


@posix
def test_a_sticky_parent_is_trusted_as_tmp_is(root):
    filled("a")
    root.parent.chmod(0o1777)
    assert DiskStore("test").get("a") == b"content of a"


@posix
@pytest.mark.parametrize("private", [True, False])
def test_a_parent_of_a_group_is_trusted_if_only_the_user_is_in_it(root, monkeypatch, private):
    import grp
    import pwd

    filled("a")
    root.chmod(0o770)
    private_folder._is_private.cache_clear()
    members = [] if private else ["mallory"]
    group = types.SimpleNamespace(gr_name=pwd.getpwuid(os.geteuid()).pw_name, gr_mem=members)
    monkeypatch.setattr(grp, "getgrgid", lambda number: group)
    try:
        if private:
            assert DiskStore("test").get("a") == b"content of a"
        else:
            refused(f"other users can write to {root}")
    finally:
        private_folder._is_private.cache_clear()


@posix
def test_a_parent_of_another_user_is_refused(root, give_away):
    filled("a")
    give_away(root)
    refused(f"{root} belongs to user {STRANGER}")


@posix
def test_the_store_is_not_a_link(root, tmp_path):
    filled("a").rename(tmp_path / "target")
    (root / "test").symlink_to(tmp_path / "target")
    refused(f"{root / 'test'} is a symbolic link to {tmp_path / 'target'}")


@posix
def test_the_folder_of_all_stores_is_not_a_link(root, tmp_path):
    filled("a")
    root.rename(tmp_path / "target")
    root.symlink_to(tmp_path / "target")
    refused(f"{root} is a symbolic link")


@posix
@pytest.mark.parametrize("relative", [False, True])
def test_a_link_of_the_user_above_it_is_followed(tmp_path, monkeypatch, relative):
    (tmp_path / "data").mkdir()
    (tmp_path / "home").symlink_to("data" if relative else tmp_path / "data")
    monkeypatch.setenv("DNNCORE_CACHE_DIR", str(tmp_path / "home" / ".cache"))
    filled("a")
    assert DiskStore("test").get("a") == b"content of a"
    assert (tmp_path / "data" / ".cache" / "test").is_dir()


@posix
def test_a_link_of_another_user_is_refused(tmp_path, monkeypatch, give_away):
    (tmp_path / "data").mkdir()
    (tmp_path / "home").symlink_to("data")
    monkeypatch.setenv("DNNCORE_CACHE_DIR", str(tmp_path / "home" / ".cache"))
    give_away(tmp_path / "home")
    refused(f"{tmp_path / 'home'} belongs to user {STRANGER}")


@posix
def test_a_circle_of_links_ends(tmp_path, monkeypatch):
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    monkeypatch.setenv("DNNCORE_CACHE_DIR", str(tmp_path / "one" / ".cache"))
    refused("is a symbolic link")


@posix
def test_a_folder_exchanged_between_check_and_use_is_not_used(root, tmp_path, monkeypatch):
    """The attacker wins the race: the path leads to the attacker's entries after the check."""
    store = DiskStore("test")
    store.put("a", b"mine")
    evil = tmp_path / "evil"
    shutil.copytree(root, evil)
    monkeypatch.setenv("DNNCORE_CACHE_DIR", str(evil))
    DiskStore("test").put("a", b"evil")
    original = private_folder.Folder.restrict

    def exchanged(folder):
        original(folder)
        if evil.exists():
            root.rename(tmp_path / "aside")
            evil.rename(root)

    monkeypatch.setattr(private_folder.Folder, "restrict", exchanged)
    assert store.get("a") == b"mine"


# -- its size --------------------------------------------------------------------------------------


def age(store, key, seconds):
    """Set the time of the last use of an entry back."""
    path = store.folder / hashlib.sha256(key.encode()).hexdigest()
    used = time.time() - seconds
    os.utime(path, (used, used))


def total(root):
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


def test_the_entries_unused_for_longest_are_removed(root, monkeypatch):
    monkeypatch.setenv("DNNCORE_CACHE_MAX_BYTES", "20000")
    store, other = DiskStore("test"), DiskStore("other")
    for number in range(8):
        (store if number % 2 else other).put(f"{number}", bytes(2000))
        age(store if number % 2 else other, f"{number}", 10_000 * (9 - number))
    assert store.get("1") is not None  # a use renews it
    for number in range(8, 11):
        store.put(f"{number}", bytes(2000))
        assert total(root) <= 20_000
    kept = [n for n in range(11) if (store if n % 2 or n > 7 else other).get(f"{n}") is not None]
    assert (kept[0], kept[-1]) == (1, 10)
    assert 0 not in kept
    assert kept[1:] == list(range(kept[1], 11))


def test_the_folder_is_not_searched_at_each_write(root, monkeypatch):
    listings = []
    original = private_folder.Folder.names

    def names(folder):
        listings.append(folder)
        return original(folder)

    monkeypatch.setattr(private_folder.Folder, "names", names)
    store = DiskStore("test")
    for number in range(200):
        store.put(f"{number}", bytes(100))
    assert len(listings) < 10


@pytest.mark.parametrize("limit", [0, 1000])
def test_an_entry_above_the_limit_is_not_stored(root, monkeypatch, limit):
    monkeypatch.setenv("DNNCORE_CACHE_MAX_BYTES", str(limit))
    store = DiskStore("test")
    store.put("a", bytes(1000))
    assert store.get("a") is None


@pytest.mark.parametrize("limit", [0, 1000])
def test_an_entry_above_the_limit_makes_the_store_keep_to_it(root, monkeypatch, limit):
    store = DiskStore("test")
    for number in range(5):
        store.put(f"{number}", bytes(500))
    monkeypatch.setenv("DNNCORE_CACHE_MAX_BYTES", str(limit))
    store.put("a", bytes(5000))
    assert total(root) <= limit


def test_files_that_a_dead_process_left_are_removed(root):
    store = DiskStore("test")
    store.put("a", b"x")
    (file,) = store.folder.iterdir()
    left, recent = file.with_name(f"{file.name}.123"), file.with_name(f"{file.name}.456")
    left.write_bytes(b"half")
    recent.write_bytes(b"half")
    for path in (left, recent):
        path.chmod(0o600)
    os.utime(left, (1e9, 1e9))
    _budget.cache_clear()  # a new process
    store.put("b", b"x")
    assert (left.exists(), recent.exists()) == (False, True)


WRITER = """
import sys
from dnncore.store import DiskStore
store = DiskStore("test")
for number in range(150):
    store.put(f"{sys.argv[1]} {number}", bytes(1000))
    assert store.get(f"{sys.argv[1]} {number}") in (bytes(1000), None)
"""


def test_several_processes_keep_to_the_limit(root, monkeypatch):
    """Each may exceed it by an eighth before it notices what the others wrote."""
    limit = 100_000
    monkeypatch.setenv("DNNCORE_CACHE_MAX_BYTES", str(limit))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, name]) for name in "abc"]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0, 0]
    assert limit / 2 < total(root) <= limit * (1 + 3 / 8)


# -- commands --------------------------------------------------------------------------------------


def command(*words):
    return CliRunner().invoke(main, ["cache", *words])


def test_info_shows_path_limit_and_contents(root, monkeypatch):
    monkeypatch.setenv("DNNCORE_CACHE_MAX_BYTES", "5000")
    filled("a", "b")
    DiskStore("other").put("c", bytes(100))
    (root / "benchmarks").mkdir()
    (root / "linked").symlink_to(root / "other", target_is_directory=True)
    (root / "benchmarks" / "notes.txt").write_text("no store")
    output = command("info").output
    assert str(root) in output
    assert "3 entries, 220 bytes; the limit is 5.0 kB" in output
    (record,) = json.loads(command("info", "--json").output)
    assert (record["path"], record["limit"], record["entries"]) == (str(root), 5000, 3)
    assert record["bytes"] == total(root) - len("no store")
    assert [s["name"] for s in record["stores"]] == ["other", "test"]
    assert time.time() - 60 < record["oldest"] <= record["newest"] <= time.time() + 1


def test_info_and_clear_without_a_folder(root):
    assert "0 entries, 0 bytes" in command("info").output
    assert command("clear").exit_code == 0
    assert not root.exists()


def test_clear_removes_entries_and_nothing_else(root):
    folder = filled("a", "b")
    (folder / "thesis.txt").write_text("ten years")
    done = command("clear")
    assert (done.exit_code, "removed 2 entries" in done.output) == (0, True)
    assert [path.name for path in folder.iterdir()] == ["thesis.txt"]


@posix
def test_a_folder_of_another_user_is_reported_and_not_cleared(root, give_away):
    folder = filled("a")
    give_away(folder)
    assert f"belongs to user {STRANGER}" in command("info").output
    done = command("clear")
    assert (done.exit_code, f"belongs to user {STRANGER}" in done.output) == (1, True)
    assert len(list(folder.iterdir())) == 1


def writable(root):
    root.mkdir()
    root.chmod(0o777)


def a_file(root):
    root.write_text("")


def a_link(root):
    root.symlink_to(root.parent / "nothing")


@posix
@pytest.mark.parametrize(
    ("make", "reason"),
    [(writable, "other users can write to {root} (mode 777)"), (a_file, "{root} is not a folder"),
     (a_link, "{root} is a symbolic link to {root.parent}/nothing")],
)  # fmt: skip
def test_a_refused_folder_is_reported_and_not_cleared(root, make, reason):
    make(root)
    reason = reason.format(root=root)
    refused(re.escape(reason))
    done = command("info")
    assert (done.exit_code, f"not used: {reason}" in done.output) == (0, True)
    assert json.loads(command("info", "--json").output)[0]["reason"] == reason
    done = command("clear")
    assert (done.exit_code, f"not emptied: {reason}" in done.output) == (1, True)


@pytest.mark.parametrize(
    ("value", "reason"),
    [("0", "DNNCORE_DISK_CACHE is 0"), ("maybe", "must be 0 or 1; got 'maybe'")],
)
def test_info_says_that_the_stores_are_switched_off(root, monkeypatch, value, reason):
    filled("a")
    monkeypatch.setenv("DNNCORE_DISK_CACHE", value)
    output = command("info").output
    assert reason in output.splitlines()[1]
    assert output.splitlines()[1].startswith("not used: ")
    assert "1 entry" in output


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="/proc is Linux's")
def test_the_whole_path_of_a_folder_that_cannot_be_made_is_named(monkeypatch):
    monkeypatch.setenv("DNNCORE_CACHE_DIR", "/proc/nope")
    refused("No such file or directory: '/proc/nope'|Permission denied: '/proc/nope'")


def test_commands_report_an_invalid_limit(root, monkeypatch):
    monkeypatch.setenv("DNNCORE_CACHE_MAX_BYTES", "lots")
    done = command("info")
    assert (done.exit_code, "got 'lots'" in done.output) == (1, True)
