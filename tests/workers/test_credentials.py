"""The secret of an application: made once, private, found without a flag, and refused where it is another or goes not far
enough."""

from __future__ import annotations

import argparse
import asyncio
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.coordinator.secret import KEY_BYTES, Right, Secret
from orchestrator.errors import RefusedBySafety, WrongUse
from state.directory import StateDirectory
from state.errors import LogUnusable
from state.log.memory import MemoryLog
from state.log.protocol import TopicSpec
from state.log.sqlite import open_sqlite
from state.private import close_to_others, make_folder, publish
from workers.connection.credentials import (
    agree,
    client_path,
    instance_credentials,
    make_secret,
    read_secret,
    renew,
    secret_path,
)
from workers.connection.listening import place_of, place_of_instance
from workers.spec import InstanceSpec

SECRET = Secret(Right.JOIN, bytes(range(KEY_BYTES)))


def test_of_many_that_start_at_once_all_have_the_same(tmp_path: Path) -> None:
    path = tmp_path / "new" / "bank.secret"
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda _: make_secret(path), range(64)))
    found = read_secret(path)
    make_secret(path)
    assert not publish(path, b"another"), "who comes later has written nothing"
    assert read_secret(path) == found and found.right is Right.JOIN
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [one.name for one in path.parent.iterdir()] == [path.name], "a draft was left behind"


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bank.secret"
    make_secret(path)
    for mode in (0o640, 0o604, 0o620):
        path.chmod(mode)
        with pytest.raises(WrongUse, match="can be read by others"):
            read_secret(path)


@given(st.text(max_size=80))
def test_any_text_is_a_secret_or_wrong_use(text: str) -> None:
    with pytest.raises(WrongUse, match="place") as of_none:
        Secret.parse("", "place")
    try:
        Secret.parse(text, "place")
    except WrongUse as error:
        assert str(error) == str(of_none.value), "a message repeats no secret"


def test_a_text_reads_back_and_a_lesser_right_is_derived() -> None:
    for right in Right:
        lowered = SECRET.lowered(right)
        assert Secret.parse(lowered.text(), "here") == lowered
        assert lowered.fingerprint() == SECRET.fingerprint()
        for lesser in range(1, right + 1):
            assert lowered.key_of(Right(lesser)) == SECRET.key_of(Right(lesser))
        for greater in range(right + 1, Right.JOIN + 1):
            with pytest.raises(RefusedBySafety, match=f"does not allow to {Right(greater).word}"):
                lowered.key_of(Right(greater))
    assert len({SECRET.key_of(right) for right in Right}) == len(Right)
    assert SECRET.key.hex() not in repr(SECRET)


def test_where_it_lies(tmp_path: Path) -> None:
    log = f"sqlite:{tmp_path}/bank.db"
    assert secret_path("bank", log, "/state") == tmp_path / "bank.db-bank.secret"
    assert secret_path("bank", "kafka://host:9092", "/state") == Path("/state/bank/group.secret")
    given = argparse.Namespace(secret_file="mine", state_dir="state")
    assert client_path("bank", log, given) == Path("mine")


def test_an_instance_needs_one_to_join_and_makes_none_in_a_named_place(tmp_path: Path) -> None:
    named = tmp_path / "named.secret"
    spec = InstanceSpec("a:app", "bank", "i1", f"sqlite:{tmp_path}/bank.db", str(tmp_path), secret_file=str(named))
    with pytest.raises(WrongUse, match=r"there is no secret at .*named"):
        instance_credentials(spec)
    named.write_text(SECRET.lowered(Right.SCALE).text())
    named.chmod(0o600)
    with pytest.raises(RefusedBySafety, match="a secret to scale does not allow to join"):
        instance_credentials(spec)
    named.write_text(SECRET.text())
    assert instance_credentials(spec).secret == SECRET


async def test_one_who_starts_with_another_secret_is_refused(tmp_path: Path) -> None:
    log = MemoryLog(markers=False)
    await agree(log, "bank", SECRET)
    await agree(log, "bank", SECRET)
    await agree(log, "shop", Secret(Right.JOIN, bytes(KEY_BYTES)))
    with pytest.raises(RefusedBySafety, match=r"'bank' has another secret .* --renew"):
        await agree(log, "bank", Secret(Right.JOIN, bytes(KEY_BYTES)))
    path = tmp_path / "bank.secret"
    new = await renew(log, "bank", path)
    assert new == read_secret(path)
    await agree(log, "bank", new)


def test_what_was_left_open_is_closed(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir(mode=0o755)
    old.chmod(0o755)
    close_to_others(old)
    close_to_others(tmp_path / "not there")
    make_folder(old / "a" / "b")
    assert {stat.S_IMODE(one.stat().st_mode) for one in (old, old / "a", old / "a" / "b")} == {0o700}


def test_a_folder_that_is_not_ours_is_left_as_it_is(tmp_path: Path) -> None:
    """`--state-dir /tmp` must not close /tmp to everybody, nor a file that is no log."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    StateDirectory(shared, "bank", "i1").lock("0_0").release()
    assert stat.S_IMODE(shared.stat().st_mode) == 0o777
    assert stat.S_IMODE((shared / "bank").stat().st_mode) == 0o700
    other = tmp_path / "notes.txt"
    other.write_text("no log, and long enough to be one" * 50)
    other.chmod(0o644)
    with pytest.raises(LogUnusable, match="is not a log"):
        asyncio.run(open_sqlite(other, create=True))
    assert stat.S_IMODE(other.stat().st_mode) == 0o644


async def test_a_log_of_the_release_before_is_closed_when_it_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    await (await open_sqlite(path, create=True)).close()
    path.chmod(0o644)
    log = await open_sqlite(path, create=False)
    await log.create_topic(TopicSpec("t", 1))
    assert {stat.S_IMODE(one.stat().st_mode) for one in tmp_path.iterdir()} == {0o600}
    await log.close()


def test_where_instances_listen() -> None:
    assert place_of("") == ("127.0.0.1", 0)
    assert place_of("10.0.0.5") == ("10.0.0.5", 0)
    assert place_of("10.0.0.5:7000") == ("10.0.0.5", 7000)
    assert place_of("[fd00::1]:7000") == ("fd00::1", 7000)
    assert [place_of_instance("h:7000", number) for number in (1, 3)] == ["h:7000", "h:7002"]
    assert place_of(place_of_instance("[fd00::1]:7000", 2)) == ("fd00::1", 7001)
    for text in ("0.0.0.0:1", "::", "h:", "h:x", "h:-1", "h:65536", "h:1e3", "[::]:7", ":7000"):
        with pytest.raises(WrongUse, match="--listen"):
            place_of(text)
    assert place_of_instance("h:65535", 2) == "h:0", "any free one"
