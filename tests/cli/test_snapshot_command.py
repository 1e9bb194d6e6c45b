"""`orchestrator snapshot`: what lies in a folder, whether it is whole, and what goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from state import manifest
from state.snapshot import Origin, write_table
from tests.cli.console import Console


def snapshot(root: Path, name: str, time_ms: int, *, base: bool = False) -> None:
    scope = root / name / "0_0"
    scope.mkdir(parents=True)
    table = write_table(scope, "sums", iter([(b"a", b"1")]), Origin("log", "x-sums-changelog", "id", 1, time_ms))
    sum_ = manifest.write_scope(scope, manifest.ScopeManifest("0_0", "log", time_ms, (table,)))
    facts = manifest.SnapshotManifest(
        snapshot=name,
        application="x",
        log_id="log",
        time_ms=time_ms,
        partitions={"x-sums-changelog": 1},
        scopes={"0_0": sum_},
        base=base,
    )
    manifest.publish(root, facts)


@pytest.fixture
def place(tmp_path: Path) -> Console:
    console = Console(tmp_path / "place")
    root = console.folder / ".orchestrator/snapshots"
    for number, name in enumerate(("s-1", "s-2", "s-3", "s-4")):
        snapshot(root, name, 1_000 * number, base=name == "s-2")
    return console


def test_listed_verified_and_pruned(place: Console) -> None:
    listed = place.here("snapshot", "list", "--json").json["snapshots"]
    assert [(one["snapshot"], one["tasks"], one["base"]) for one in listed] == [
        ("s-1", 1, False),
        ("s-2", 1, True),
        ("s-3", 1, False),
        ("s-4", 1, False),
    ]
    assert "1970-01-01 00:00:01Z" in place.here("snapshot", "list").out
    assert "4 verified" in place.here("snapshot", "verify").out
    [data] = (place.folder / ".orchestrator/snapshots/s-3").rglob("*.sst")
    data.write_bytes(data.read_bytes()[:-1] + b"!")
    damaged = place.here("snapshot", "verify")
    assert damaged.code == 1 and damaged.err.startswith("error: snapshot s-3: ") and damaged.err.count("\n") == 1
    assert "s-4" in damaged.out, "those behind it are verified as well"
    assert place.here("snapshot", "verify", "s-4").code == 0
    assert place.here("snapshot", "verify", "--json", "s-4").code == 0, "options stand where they like"
    assert place.here("snapshot", "prune", "--keep", "1", "--json").json["removed"] == ["s-1", "s-3"]
    assert [one["snapshot"] for one in place.here("snapshot", "list", "--json").json["snapshots"]] == ["s-2", "s-4"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["list", "--snapshots", "none"], "there is no folder none"),
        (["prune"], "prune needs --keep N"),
        (["list", "--keep", "1"], "--keep is for prune"),
        (["list", "s-1"], "leave out s-1"),
        (["verify", "s-9"], "s-9"),
        (["prune", "--keep", "0"], "--keep"),
    ],
)
def test_wrong_use(place: Console, words: list[str], said: str) -> None:
    done = place.here("snapshot", *words)
    assert done.code in (1, 2) and done.err.count("\n") == 1 and said in done.err, done


def test_all_that_are_damaged_are_named(place: Console) -> None:
    for name in ("s-1", "s-3"):
        [data] = (place.folder / f".orchestrator/snapshots/{name}").rglob("*.sst")
        data.unlink()
    damaged = place.here("snapshot", "verify", "--json")
    assert damaged.code == 1 and damaged.err.count("\n") == 1
    assert "snapshot s-1: " in damaged.err and "snapshot s-3: " in damaged.err
    assert [one["snapshot"] for one in damaged.json["verified"]] == ["s-2", "s-4"]
    assert list(damaged.json["damaged"]) == ["s-1", "s-3"]
    alone = place.here("snapshot", "verify", "s-1")
    assert (alone.code, alone.out) == (1, "no snapshot is whole\n"), alone


def test_the_newest_is_the_one_that_was_made_last(place: Console) -> None:
    """A clock that was a year ahead made the others the older ones, and `prune` removed each of them."""
    root = place.folder / ".orchestrator/snapshots"
    snapshot(root, "s-5", 365 * 86_400_000)
    snapshot(root, "s-6", 5_000)
    assert place.here("snapshot", "prune", "--keep", "1", "--json").json["removed"] == ["s-1", "s-3", "s-4", "s-5"]
    assert manifest.newest(root, "x", "log", {"x-sums-changelog": 1}).snapshot == "s-6"  # type: ignore[union-attr]
