"""The state directory: one lock per task that ends with its process, clear errors, and clean-up that never hurts."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from orchestrator.clocks import wall_ms
from state.directory import StateDirectory
from state.errors import DirectoryLocked, DirectoryUnusable, TooManyFiles
from state.store.rocksdb import RocksDbStore
from tests.state.permissions import as_any_user

STAMP = {"log_id": "l", "topic_id": "t"}
HOLD = """
import sys
from contextlib import suppress
from pathlib import Path
from state.directory import StateDirectory
lock = StateDirectory(Path(sys.argv[1]), "app", "i-1").lock("0_3")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def directory(tmp_path: Path) -> StateDirectory:
    return StateDirectory(tmp_path, "app", "i-1")


def fill(directory: StateDirectory, task: str, table: str, offset: int) -> None:
    store = RocksDbStore(directory.table(task, table), stamp=STAMP)
    store.write({b"k": b"v"}, offset)
    store.close()


def newest(folder: Path) -> int:
    return int(max(path.stat().st_mtime for path in (folder, *folder.rglob("*"))) * 1000)


def test_the_layout_is_by_application_instance_task_and_table(directory: StateDirectory, tmp_path: Path) -> None:
    assert directory.table("0_3", "counts") == tmp_path / "app" / "i-1" / "0_3" / "counts"


def test_a_task_is_held_once(directory: StateDirectory, tmp_path: Path) -> None:
    with directory.lock("0_3"), directory.lock("0_4"):
        with pytest.raises(DirectoryLocked, match=rf"0_3 is in use by process {os.getpid()}"):
            StateDirectory(tmp_path, "app", "i-1").lock("0_3")
        with StateDirectory(tmp_path, "app", "i-2").lock("0_3"):
            pass
    again = directory.lock("0_3")
    again.release()
    again.release()


def test_a_task_whose_folder_is_deleted_is_held_until_it_is_released(directory: StateDirectory) -> None:
    """Its stores are still open: one that is opened in their place would lose files to them as they close."""
    held = directory.lock("0_3")
    shutil.rmtree(directory.path)
    with pytest.raises(DirectoryLocked, match=rf"0_3 is in use by process {os.getpid()}"):
        directory.lock("0_3")
    held.release()
    directory.lock("0_3").release()


@pytest.mark.processes
def test_a_lock_ends_with_its_process_however_that_ends(directory: StateDirectory, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(DirectoryLocked, match=rf"process {holder.pid}"):
            directory.lock("0_3")
        assert directory.clean([], delay_ms=0, now_ms=newest(directory.path) + 10**9) == []
        holder.send_signal(signal.SIGKILL)
        holder.wait(10)
        directory.lock("0_3").release()


def test_what_is_on_disk_is_found_without_disturbing_who_has_it_open(directory: StateDirectory) -> None:
    fill(directory, "0_3", "counts", 42)
    fill(directory, "0_3", "last", 7)
    fill(directory, "1_0", "counts", 9)
    directory.lock("2_2").release()
    store = RocksDbStore(directory.table("1_0", "counts"), stamp=STAMP)
    store.write({b"unflushed": b"x"}, 10)
    assert directory.tasks() == ["0_3", "1_0"]
    found = {task: directory.tables(task) for task in directory.tasks()}
    offsets = {
        (task, table): one.peek.offset for task, tables in found.items() for table, one in tables.items() if one.peek
    }
    assert offsets == {("0_3", "counts"): 42, ("0_3", "last"): 7, ("1_0", "counts"): 9}
    peek = found["0_3"]["counts"].peek
    assert peek is not None
    assert peek.stamp["log_id"] == "l"
    assert peek.size_bytes > 0
    store.close()


def test_a_damaged_table_is_a_finding_not_a_failure(directory: StateDirectory) -> None:
    fill(directory, "0_3", "counts", 42)
    fill(directory, "0_4", "counts", 43)
    (directory.table("0_3", "counts") / "CURRENT").write_text("nonsense")
    found = {task: directory.tables(task) for task in directory.tasks()}
    assert found["0_3"]["counts"].peek is None
    assert "restore" in (found["0_3"]["counts"].problem or "")
    assert found["0_4"]["counts"].peek is not None


def test_a_rotten_block_is_a_finding_as_well(directory: StateDirectory) -> None:
    """It is met when it is read, which is after the store was opened."""
    fill(directory, "0_3", "counts", 42)
    [file] = directory.table("0_3", "counts").glob("*.sst")
    data = bytearray(file.read_bytes())
    data[:64] = bytes(byte ^ 0xFF for byte in data[:64])
    file.write_bytes(data)
    found = directory.tables("0_3")["counts"]
    assert found.peek is None and "cannot be read: wipe it and restore it" in (found.problem or "")


def test_wiping_takes_tables_and_leaves_the_lock(directory: StateDirectory) -> None:
    with directory.lock("0_3"):
        fill(directory, "0_3", "counts", 42)
        fill(directory, "0_3", "last", 7)
        directory.wipe("0_3", "last")
        assert list(directory.tables("0_3")) == ["counts"]
        directory.wipe("0_3")
        directory.wipe("0_3")
        directory.wipe("0_3", "never there")
        assert directory.tasks() == []
        with pytest.raises(DirectoryLocked):
            directory.lock("0_3")


def test_cleaning_takes_only_what_is_stale_free_and_unwanted(directory: StateDirectory) -> None:
    for task in ("0_0", "0_1", "0_2"):
        fill(directory, task, "counts", 1)
    held = directory.lock("0_1")
    now_ms = newest(directory.path)
    assert directory.clean([], delay_ms=600_000, now_ms=now_ms) == []
    assert directory.clean(["0_0"], delay_ms=600_000, now_ms=now_ms + 600_001) == ["0_2"]
    assert directory.tasks() == ["0_0", "0_1"]
    assert not directory.task("0_2").exists()
    held.release()
    assert directory.clean([], delay_ms=0, now_ms=newest(directory.path) + 1) == ["0_0", "0_1"]
    directory.lock("0_0").release()


def test_what_is_free_is_removed_at_once_also_where_the_clock_was_set_back(directory: StateDirectory) -> None:
    """`reset` removed nothing as long as a file's time lay ahead, and was refused each time."""
    fill(directory, "0_0", "counts", 1)
    now_ms = newest(directory.path)
    assert directory.clean([], delay_ms=1, now_ms=now_ms - 3_600_000) == []
    assert directory.clean([], delay_ms=0, now_ms=now_ms - 3_600_000) == ["0_0"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", ".hidden", "nul\0", "lock"])
def test_names_that_are_no_folders_are_refused(directory: StateDirectory, tmp_path: Path, name: str) -> None:
    with pytest.raises(DirectoryUnusable, match="cannot be the name of a folder"):
        directory.task(name)
    with pytest.raises(DirectoryUnusable, match="application name"):
        StateDirectory(tmp_path, name, "i-1")


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "app").write_text("not a folder")
    with pytest.raises(DirectoryUnusable, match="a file has that name"):
        StateDirectory(tmp_path, "app", "i-1")


FULL = """
import resource
import sys
from pathlib import Path
from state.directory import StateDirectory
from state.errors import StateError
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))  # as on a full disk, a file is made and none of it written
try:
    StateDirectory(Path(sys.argv[1]), "bank", "i1")
except StateError as error:
    print(error, file=sys.stderr)
    raise SystemExit(7)
"""


def test_a_disk_that_takes_nothing_is_left_as_it_was(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL, tmp_path], capture_output=True, text=True)
    assert done.returncode == 7 and len(done.stderr.splitlines()) == 1, done
    assert list((tmp_path / "bank/i1").iterdir()) == []


def test_a_folder_without_permission_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with as_any_user(), pytest.raises(DirectoryUnusable, match="check its permissions"):
        StateDirectory(tmp_path, "app", "i-1")
    tmp_path.chmod(0o700)


@pytest.mark.parametrize("what", ["task", "table"])
def test_a_folder_that_may_not_be_looked_into_is_not_gone_and_hides_no_other(
    directory: StateDirectory, what: str
) -> None:
    """It raised PermissionError, which ended each worker that looked at what lies on its disk."""
    for task in ("0_0", "0_1"):
        directory.lock(task).release()
        RocksDbStore(directory.table(task, "t"), stamp={}).close()
    closed = directory.task("0_0") if what == "task" else directory.table("0_0", "t")
    closed.chmod(0)
    with as_any_user():
        assert directory.has("0_0", "t")
        assert directory.tasks() == ["0_0", "0_1"]
        found = directory.tables("0_0")
        assert all(one.peek is None and "may not be written" in (one.problem or "") for one in found.values())
        assert directory.tables("0_1")["t"].peek is not None
        if what == "task":
            with pytest.raises(DirectoryUnusable, match="check its permissions"):
                directory.clean([], delay_ms=0, now_ms=wall_ms() + 1)
            assert directory.tasks() == ["0_0"], "what comes behind it stayed for ever"
    closed.chmod(0o700)


def test_a_held_folder_that_may_not_be_looked_at_is_not_gone(directory: StateDirectory) -> None:
    held = directory.held()
    directory.path.parent.chmod(0)
    with as_any_user():
        assert not held.is_gone()
    directory.path.parent.chmod(0o700)
    held.close()


def test_a_folder_removed_by_somebody_comes_back_with_the_lock(directory: StateDirectory) -> None:
    shutil.rmtree(directory.path)
    directory.lock("0_3").release()
    assert directory.task("0_3").exists()


OPENED = """
import sys
from contextlib import suppress
from pathlib import Path
from state.store.rocksdb import RocksDbStore
store = RocksDbStore(Path(sys.argv[1]), stamp={})
print("opened", flush=True)
sys.stdin.read()
"""


def test_a_store_that_is_open_elsewhere_is_locked_and_nothing_else_is(tmp_path: Path) -> None:
    """A lock that cannot be taken for another reason was waited for, without a line and without an end."""
    path = tmp_path / "t"
    store = RocksDbStore(path, stamp={})
    with pytest.raises(DirectoryLocked, match="is open elsewhere"):
        RocksDbStore(path, stamp={})
    store.close()
    with subprocess.Popen(
        [sys.executable, "-c", OPENED, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "opened\n"
        with pytest.raises(DirectoryLocked, match="is open elsewhere"):
            RocksDbStore(path, stamp={})
        holder.communicate()
    (path / "LOCK").chmod(0)
    with as_any_user(), pytest.raises(DirectoryUnusable, match=r"check its folder.*LOCK: Permission denied"):
        RocksDbStore(path, stamp={})
    (path / "LOCK").unlink()
    (path / "LOCK").mkdir()
    with pytest.raises(DirectoryUnusable, match=r"check its folder.*LOCK: Is a directory"):
        RocksDbStore(path, stamp={})


def test_what_cannot_be_looked_at_for_too_many_files_is_refused_and_not_taken_for_nothing(
    directory: StateDirectory,
) -> None:
    """It was an error of Python's, in a task of the worker that nothing waits for: a traceback."""
    fill(directory, "0_0", "t", 7)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    taken: list[int] = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for look in (directory.tasks, lambda: directory.tables("0_0"), lambda: directory.lock("0_1")):
            with pytest.raises(TooManyFiles, match="has too many files open; raise the limit"):
                look()
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert directory.tasks() == ["0_0"] and list(directory.tables("0_0")) == ["t"]
