"""The files of `table scan` and `table dump`: whole, or not there, and what cannot be written is named."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from orchestrator.errors import OrchestratorError, WrongUse
from pipeline.time.stored_form import StoredRow
from tests.docs.snippets import ROOT
from tests.small_disk import small
from workers.commands.table_file import target

__all__ = ["small"]
ENDINGS = pytest.mark.parametrize("ending", ["jsonl", "parquet"])


def write(path: Path, rows: int = 1) -> None:
    with target(str(path), "str", "bytes") as into:
        for number in range(rows):
            into.add(StoredRow(b"k%d" % number, None, None, b"v" * 1_000))


@ENDINGS
def test_a_folder_is_no_file(ending: str, tmp_path: Path) -> None:
    folder = tmp_path / f"f.{ending}"
    folder.mkdir()
    with pytest.raises(WrongUse, match="that is a folder; name a file"):
        write(folder)
    assert [*tmp_path.iterdir()] == [folder]


@ENDINGS
def test_what_a_link_names_is_written(ending: str, tmp_path: Path) -> None:
    link, file = tmp_path / f"link.{ending}", tmp_path / f"file.{ending}"
    link.symlink_to(file)
    write(link)
    assert link.is_symlink() and file.stat().st_size
    assert {*tmp_path.iterdir()} == {link, file}


@ENDINGS
@pytest.mark.parametrize("rows", [1, 30_000])
def test_a_full_disk_is_named_and_nothing_is_left(ending: str, rows: int, small: Path) -> None:
    filler = small / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"\0" * 4_096)
    path = small / f"f.{ending}"
    with pytest.raises(OrchestratorError, match=f"--out {path} cannot be written .*; name another file, or make room"):
        write(path, rows)
    assert [*small.iterdir()] == [filler]


@ENDINGS
def test_two_writers_of_one_file_have_their_own_until_each_is_whole(ending: str, tmp_path: Path) -> None:
    """The second one wrote over what the first had put in its place: it held zeros."""
    path, row = tmp_path / f"f.{ending}", StoredRow(b"k", None, None, b"v" * 1_000)
    with pytest.raises(KeyboardInterrupt), target(str(path), "str", "bytes") as second:
        second.add(row)
        write(path, 500)
        first = path.read_bytes()
        for _ in range(30_000):
            second.add(row)
        assert path.read_bytes() == first
        raise KeyboardInterrupt
    assert [*tmp_path.iterdir()] == [path] and path.read_bytes() == first


@ENDINGS
def test_what_a_killed_writer_left_goes_with_the_next_one(ending: str, tmp_path: Path) -> None:
    path, other = tmp_path / f"f.{ending}", tmp_path / f".g.{ending}.1-0a1b2c3d.part"
    program = (
        "import os, sys; from pathlib import Path; from tests.workers.test_table_file import target;"
        "target(sys.argv[1], 'str', 'bytes').__enter__(); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], cwd=ROOT, check=False)
    assert len([*tmp_path.iterdir()]) == 1
    other.touch()
    write(path)
    assert {*tmp_path.iterdir()} == {path, other}
