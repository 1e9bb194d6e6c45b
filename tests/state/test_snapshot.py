"""Snapshots: nothing without its root manifest, nothing that does not match its sum, only into an empty store."""

from __future__ import annotations

import random
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from state import manifest, snapshot
from state.errors import SnapshotUnusable, StateError
from state.manifest import ScopeManifest, SnapshotManifest, SourcePosition, TableManifest
from state.private import make_folder
from state.snapshot import Origin
from state.store.rocksdb import RocksDbStore

ORIGIN = Origin("log-1", "counts-changelog", "topic-1", 500, 1_000)
STAMP = {"log_id": "log-1", "topic_id": "topic-1"}
PAIRS = [(b"k%05d" % number, b"value-%d" % number) for number in range(3_000)]


def write(
    root: Path, name: str, *, time_ms: int = 1_000, base: bool = False, application: str = "app"
) -> SnapshotManifest:
    folder = root / name / "0_0"
    make_folder(folder)
    table = snapshot.write_table(folder, "counts", PAIRS, ORIGIN)
    empty = snapshot.write_table(folder, "empty", [], ORIGIN._replace(topic="empty-changelog"))
    digest = manifest.write_scope(folder, ScopeManifest("0_0", "log-1", time_ms, (table, empty)))
    made = SnapshotManifest(
        name,
        application,
        "log-1",
        time_ms,
        {"counts-changelog": 4, "empty-changelog": 4},
        {"0_0": digest},
        (SourcePosition("payments", 0, 77),),
        base,
    )
    manifest.publish(root, made)
    return made


def table_of(root: Path, name: str, table: str) -> TableManifest:
    found = manifest.load_scope(root, manifest.load(root, name), "0_0").table(table)
    assert found is not None
    return found


def store_in(tmp_path: Path) -> RocksDbStore:
    return RocksDbStore(tmp_path / "store", stamp=STAMP, clock_ms=lambda: 9_000)


def test_a_store_made_from_a_snapshot_knows_everything(tmp_path: Path) -> None:
    root = tmp_path / "snapshots"
    made = msgspec.structs.replace(write(root, "s-1"), number=1)
    assert manifest.load(root, "s-1") == made
    assert snapshot.verify(root, "s-1") == made
    found = table_of(root, "s-1", "counts")
    assert (found.entries, found.offset, [one.name for one in found.files]) == (3_000, 500, ["counts/00000.sst"])
    store = store_in(tmp_path)
    snapshot.ingest(store, root / "s-1" / "0_0", found)
    assert list(store.range(None, None)) == PAIRS
    assert (store.offset, dict(store.stamp())) == (500, {**STAMP, "time_ms": "1000"})
    store.write({b"k00000": None, b"new": b"1"}, 501)
    store.close()
    again = store_in(tmp_path)
    assert (again.offset, again.get(b"k00000"), again.get(b"new"), again.get(b"k00001")) == (
        501,
        None,
        b"1",
        b"value-1",
    )
    again.close()
    snapshot.verify(root, "s-1")  # the shared files were copied, not taken


def test_a_table_without_entries_has_no_file(tmp_path: Path) -> None:
    root = tmp_path / "snapshots"
    write(root, "s-1")
    found = table_of(root, "s-1", "empty")
    assert (found.entries, found.files) == (0, ())
    assert not (root / "s-1" / "0_0" / "empty").exists()
    store = store_in(tmp_path)
    snapshot.ingest(store, root / "s-1" / "0_0", found)
    assert (store.offset, list(store.range(None, None))) == (500, [])
    with pytest.raises(SnapshotUnusable, match="not empty"):
        snapshot.ingest(store, root / "s-1" / "0_0", found)
    store.close()


def test_only_an_empty_store_takes_a_snapshot(tmp_path: Path) -> None:
    root = tmp_path / "snapshots"
    write(root, "s-1")
    store = store_in(tmp_path)
    store.write({b"k00000": b"NEWER"}, 600)
    with pytest.raises(StateError, match="not empty"):
        snapshot.ingest(store, root / "s-1" / "0_0", table_of(root, "s-1", "counts"))
    assert (store.get(b"k00000"), store.offset) == (b"NEWER", 600)
    store.close()


def test_large_tables_become_several_files(tmp_path: Path) -> None:
    noise = random.Random(7)  # does not compress
    pairs = [(b"k%06d" % number, noise.randbytes(500)) for number in range(4_000)]
    make_folder(tmp_path / "0_0")
    table = snapshot.write_table(tmp_path / "0_0", "counts", pairs, ORIGIN, file_bytes=100_000)
    assert len(table.files) > 2
    store = store_in(tmp_path)
    told = list(snapshot.verified(tmp_path / "0_0", table.files))
    snapshot.take(store, tmp_path / "0_0", table)
    assert list(store.range(None, None)) == pairs
    store.close()
    assert sum(size for size, _ in told) == sum(file.bytes for file in table.files)
    shares = [share for _, share in told]
    assert len(shares) >= len(table.files) and shares == sorted(shares) and 0 < shares[0] < shares[-1] == 1.0


@pytest.mark.parametrize("keys", [[b"b", b"a"], [b"a", b"a"], [b"", b"b", b"a"]])
def test_keys_out_of_order_leave_nothing_behind(tmp_path: Path, keys: list[bytes]) -> None:
    with pytest.raises(SnapshotUnusable, match="sort the entries"):
        snapshot.write_table(tmp_path, "counts", [(key, b"v") for key in keys], ORIGIN)
    assert list(tmp_path.iterdir()) == []


def test_a_source_that_breaks_off_leaves_nothing_behind(tmp_path: Path) -> None:
    def broken():  # type: ignore[no-untyped-def]
        yield b"a", b"1"
        raise RuntimeError("the source ended")

    with pytest.raises(RuntimeError, match="the source ended"):
        snapshot.write_table(tmp_path, "counts", broken(), ORIGIN)
    assert list(tmp_path.iterdir()) == []


def test_altered_missing_and_foreign_files_are_refused_before_the_store_is_touched(tmp_path: Path) -> None:
    root = tmp_path / "snapshots"
    write(root, "s-1")
    table, folder = table_of(root, "s-1", "counts"), root / "s-1" / "0_0"
    file = folder / table.files[0].name
    whole = file.read_bytes()
    store = store_in(tmp_path)
    for damage in (whole[:-1], whole[:1000] + b"X" + whole[1001:], b""):
        file.write_bytes(damage)
        with pytest.raises(SnapshotUnusable, match="does not match its checksum"):
            snapshot.ingest(store, folder, table)
        with pytest.raises(SnapshotUnusable):
            snapshot.verify(root, "s-1")
    file.unlink()
    with pytest.raises(SnapshotUnusable, match="cannot be read"):
        snapshot.ingest(store, folder, table)
    assert store.is_empty()
    file.write_bytes(whole)
    snapshot.ingest(store, folder, table)
    store.close()


def test_a_manifest_that_leads_out_of_its_folder_is_refused(tmp_path: Path) -> None:
    make_folder(tmp_path / "other")
    table = snapshot.write_table(tmp_path / "other", "counts", PAIRS, ORIGIN)
    for name in ("../other/counts/00000.sst", str(tmp_path / "other/counts/00000.sst")):
        evil = manifest.FileSum(name, table.files[0].bytes, table.files[0].blake2b)
        with pytest.raises(SnapshotUnusable, match="outside"):
            snapshot.verify_files(tmp_path / "0_0", [evil])


def test_without_the_root_manifest_there_is_no_snapshot(tmp_path: Path) -> None:
    root = tmp_path / "snapshots"
    assert manifest.listing(root) == ([], {})
    write(root, "s-1")
    write(root, "s-2", time_ms=2_000)
    (root / "s-2" / "manifest.json").unlink()
    (root / "other things").mkdir()
    assert [one.snapshot for one in manifest.listing(root)[0]] == ["s-1"]
    with pytest.raises(SnapshotUnusable):
        manifest.load(root, "s-2")


def test_a_snapshot_is_not_published_before_all_its_scopes_are_there(tmp_path: Path) -> None:
    root = tmp_path / "snapshots"
    made = write(root, "s-1")
    (root / "s-1" / "manifest.json").unlink()
    with pytest.raises(SnapshotUnusable, match="0_1"):
        manifest.publish(root, SnapshotManifest("s-1", "app", "log-1", 1, {}, {**made.scopes, "0_1": "0"}))
    with pytest.raises(SnapshotUnusable, match="not the one announced"):
        manifest.publish(root, SnapshotManifest("s-1", "app", "log-1", 1, {}, {"0_0": "0"}))
    assert manifest.listing(root) == ([], {})


def test_a_scope_manifest_changed_afterwards_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "snapshots"
    made = write(root, "s-1")
    path = root / "s-1" / "0_0" / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"offset":500', b'"offset":501'))
    with pytest.raises(SnapshotUnusable, match="changed since"):
        manifest.load_scope(root, made, "0_0")
    with pytest.raises(SnapshotUnusable, match="has no 7_7"):
        manifest.load_scope(root, made, "7_7")


def test_a_root_manifest_with_an_altered_bit_is_found_or_means_the_same(tmp_path: Path) -> None:
    """Nothing has a sum of it: one whose `base` was altered was pruned, and the changelogs that go on from it were worth nothing."""
    root = tmp_path / "snapshots"
    write(root, "s-1", base=True)
    path = root / "s-1" / "manifest.json"
    data, made = path.read_bytes(), manifest.load(root, "s-1")
    assert (made.base, made.application) == (True, "app")
    for at in range(len(data)):
        altered = bytearray(data)
        altered[at] ^= 1 << at % 7
        path.write_bytes(altered)
        found, problems = manifest.listing(root)
        assert found == [made] if found else list(problems) == ["s-1"], (at, found)
    path.write_bytes(data.replace(b'"base":true', b'"bare":true'))
    with pytest.raises(SnapshotUnusable, match="changed since"):
        snapshot.verify(root, "s-1")
    assert manifest.prune(root, 0) == []
    text, mark, _ = data.rpartition(manifest.SUM)
    path.write_bytes(text + b"}")  # as versions without a sum have written it
    assert mark and manifest.load(root, "s-1") == made


def test_unreadable_manifests_are_findings_and_hide_no_other_snapshot(tmp_path: Path) -> None:
    root = tmp_path / "snapshots"
    write(root, "s-1")
    for name, text in (("s-2", "{"), ("s-3", '{"snapshot": 3}'), ("s-4", "")):
        (root / name).mkdir()
        (root / name / "manifest.json").write_text(text)
    write(root, "s-5")
    path = root / "s-5" / "manifest.json"
    path.write_text(path.read_text().replace('"format":1', '"format":9'))
    found, problems = manifest.listing(root)
    assert [one.snapshot for one in found] == ["s-1"]
    assert sorted(problems) == ["s-2", "s-3", "s-4", "s-5"]
    assert "format 9" in problems["s-5"]


def test_the_newest_fitting_snapshot_is_chosen(tmp_path: Path) -> None:
    root = tmp_path / "snapshots"
    counts = {"counts-changelog": 4, "empty-changelog": 4, "another": 9}
    assert manifest.newest(root, "app", "log-1", counts) is None
    write(root, "b", time_ms=1_000)
    write(root, "a", time_ms=2_000)
    chosen = manifest.newest(root, "app", "log-1", counts)
    assert chosen is not None
    assert chosen.snapshot == "a"
    assert manifest.newest(root, "other", "log-1", counts) is None
    assert manifest.newest(root, "app", "log-2", counts) is None
    assert manifest.newest(root, "app", "log-1", {**counts, "counts-changelog": 8}) is None


def test_a_base_is_chosen_only_by_its_name(tmp_path: Path) -> None:
    root = tmp_path / "snapshots"
    counts = {"counts-changelog": 4, "empty-changelog": 4}
    write(root, "a", time_ms=1_000)
    write(root, "b", time_ms=2_000, base=True)
    names = [manifest.newest(root, "app", "log-1", counts, base=name) for name in ("", "a", "b")]
    assert [one and one.snapshot for one in names] == ["a", "a", "b"]


def test_pruning_keeps_the_newest_the_protected_and_every_base(tmp_path: Path) -> None:
    root = tmp_path / "snapshots"
    for number in range(5):
        write(root, f"s-{number}", time_ms=number, base=number == 1)
    assert manifest.prune(root, 2, protected=["s-2"]) == ["s-0"]
    assert [one.snapshot for one in manifest.listing(root)[0]] == ["s-1", "s-2", "s-3", "s-4"]
    assert manifest.prune(root, 0) == ["s-2", "s-3", "s-4"]
    assert [path.name for path in root.iterdir()] == ["s-1"]


def test_pruning_counts_the_snapshots_of_each_application(tmp_path: Path) -> None:
    root = tmp_path / "snapshots"
    write(root, "old", time_ms=1, application="calm")
    for number in range(3):
        write(root, f"s-{number}", time_ms=2 + number)
    assert manifest.prune(root, 2) == ["s-0"]
    assert [one.snapshot for one in manifest.listing(root)[0]] == ["old", "s-1", "s-2"]


def test_a_snapshot_is_what_its_folder_is_called(tmp_path: Path) -> None:
    """Beside a copy of it the only snapshot was removed, and nothing could be restored from the copy; one that was renamed was lost."""
    root = tmp_path / "snapshots"
    write(root, "s-0", time_ms=1)
    shutil.copytree(root / "s-0", root / "before-release")
    assert sorted(one.snapshot for one in manifest.listing(root)[0]) == ["before-release", "s-0"]
    [removed] = manifest.prune(root, 1)
    [left] = [one.snapshot for one in manifest.listing(root)[0]]
    assert {removed, left} == {"before-release", "s-0"} and [path.name for path in root.iterdir()] == [left]
    (root / left).rename(root / "kept")
    [chosen] = manifest.fitting(root, "app", "log-1", {"counts-changelog": 4, "empty-changelog": 4})
    assert chosen.snapshot == snapshot.verify(root, "kept").snapshot == "kept"
    assert manifest.load_scope(root, chosen, "0_0").table("counts") is not None


def test_of_prunes_at_one_time_each_removes_what_it_can(tmp_path: Path) -> None:
    """One that came later found a manifest that was gone, and failed."""
    root = tmp_path / "snapshots"
    for number in range(24):
        write(root, f"s-{number:02}", time_ms=number + 1)
    begin = threading.Barrier(6)

    def pruned(_: int) -> list[str]:
        begin.wait(60)
        return manifest.prune(root, 1)

    with ThreadPoolExecutor(6) as pool:
        removed = [name for found in pool.map(pruned, range(6)) for name in found]
    assert sorted(removed) == [f"s-{number:02}" for number in range(23)], "each by one of them"
    assert [path.name for path in root.iterdir()] == ["s-23"]


def test_what_a_prune_that_was_killed_has_left_goes_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "snapshots"
    for number in range(3):
        write(root, f"s-{number}", time_ms=number + 1)

    def killed(folder: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", killed)
        manifest.prune(root, 1)
    found, problems = manifest.listing(root)
    assert [one.snapshot for one in found] == ["s-2"] and not problems
    assert len(list(root.iterdir())) == 3 and manifest.prune(root, 1) == []
    assert [path.name for path in root.iterdir()] == ["s-2"]


def test_the_first_of_two_attempts_at_a_scope_wins(tmp_path: Path) -> None:
    for attempt in ("one", "two"):
        make_folder(tmp_path / attempt)
        snapshot.write_table(tmp_path / attempt, "counts", PAIRS, ORIGIN)
    assert manifest.settle(tmp_path / "one", tmp_path / "0_0")
    assert not manifest.settle(tmp_path / "two", tmp_path / "0_0")
    assert [path.name for path in tmp_path.iterdir()] == ["0_0"]


def test_a_table_of_a_snapshot_is_trusted_under_the_rules(tmp_path: Path) -> None:
    root = tmp_path / "snapshots"
    scope = manifest.load_scope(root, write(root, "s-1"), "0_0")

    def problem(table: str = "counts", log_id: str = "log-1", topic_id: str = "topic-1", end: int = 900) -> str:
        found = snapshot.problem(
            scope, table, log_id=log_id, topic_id=topic_id, start=0, end=end, delete_retention_ms=10_000, now_ms=2_000
        )
        return found or ""

    assert problem() == ""
    assert "no table" in problem("nothing")
    assert "another log" in problem(log_id="log-2")
    assert "made again" in problem(topic_id="topic-2")
    assert "past the end" in problem(end=499)


def test_a_table_can_be_read_without_keeping_a_store(tmp_path: Path) -> None:
    root = tmp_path / "snapshots"
    write(root, "s-1")
    folder = root / "s-1" / "0_0"
    assert list(snapshot.read_table(folder, table_of(root, "s-1", "counts"), tmp_path / "scratch")) == PAIRS
    for first, more in ((PAIRS[-1][0], PAIRS[-1:]), (b"none", [])):
        found = snapshot.read_table(folder, table_of(root, "s-1", "counts"), tmp_path / "scratch", first)
        assert list(found) == [*more, *PAIRS], "the entry that is asked for first comes at its place as well"
    assert list(snapshot.read_table(folder, table_of(root, "s-1", "empty"), tmp_path / "scratch")) == []
    assert not (tmp_path / "scratch").exists()


def test_a_live_store_can_be_written_as_a_snapshot(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    store.write(dict(PAIRS), 500)
    make_folder(tmp_path / "0_0")
    table = snapshot.write_table(tmp_path / "0_0", "counts", store.range(None, None), ORIGIN)
    store.close()
    shutil.rmtree(tmp_path / "store")
    copy = store_in(tmp_path)
    snapshot.ingest(copy, tmp_path / "0_0", table)
    assert list(copy.range(None, None)) == PAIRS
    copy.close()
