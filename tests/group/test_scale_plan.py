"""The rule of shares: whole numbers, never below one, a share always with a percent sign."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from orchestrator.errors import WrongUse
from orchestrator.group.scale_plan import Amount, choose, choose_leaving, parse_amount, target_size
from orchestrator.model import Settings, Task, TaskFacts, TaskId
from orchestrator.simulator.scenario_cluster import ScenarioCluster

COUNTS = st.integers(1, 10_000)
PERCENTS = st.fractions(Fraction(1, 100), 100, max_denominator=100)


@pytest.mark.parametrize(
    ("running", "to", "stay"),
    [(40, "80%", 32), (4, "50%", 2), (3, "50%", 2), (5, "50%", 3), (1, "50%", 1), (7, "1%", 1), (8, "12.5%", 1)],
)
def test_to_a_share(running: int, to: str, stay: int) -> None:
    assert target_size(running, to=parse_amount(to, "--to"), by=None) == stay


@pytest.mark.parametrize(
    ("running", "by", "stay"), [(40, "20%", 32), (3, "50%", 2), (3, "10%", 3), (4, "3", 1), (4, "9", 1), (4, "100%", 1)]
)
def test_by_a_share(running: int, by: str, stay: int) -> None:
    assert target_size(running, to=None, by=parse_amount(by, "--by")) == stay


@given(running=COUNTS, percent=PERCENTS)
def test_to_and_by_are_each_other_s_complement(running: int, percent: Fraction) -> None:
    """Leaving P% of them there is taking 100%-P% away, but for the one that always stays."""
    to = target_size(running, to=Amount(percent=percent), by=None)
    by = target_size(running, to=None, by=Amount(percent=100 - percent))
    assert to == by == max(1, -((-running * percent) // 100))


@given(running=COUNTS, percent=PERCENTS, grow=st.booleans(), which=st.sampled_from(["to", "by"]))
def test_one_always_stays_and_nothing_goes_the_other_way(
    running: int, percent: Fraction, grow: bool, which: str
) -> None:
    amount = Amount(percent=percent)
    size = target_size(running, to=amount if which == "to" else None, by=amount if which == "by" else None, grow=grow)
    assert size >= 1
    assert size >= running if grow else size <= running


@given(text=st.text(max_size=12))
def test_any_text_is_an_amount_or_wrong_use(text: str) -> None:
    try:
        amount = parse_amount(text, "--to")
    except WrongUse as error:
        assert "--to" in str(error) and "write" in str(error)
    else:
        assert (amount.count or 0) > 0 or 0 < (amount.percent or 0) <= 100


@given(whole=st.integers(1, 99), part=st.integers(0, 99))
def test_what_a_share_without_its_sign_should_be(whole: int, part: int) -> None:
    """0.8 is refused with the very text that means it."""
    exact = Fraction(whole * 100 + part, 100)
    text = f"0.{whole:02d}{part:02d}"
    with pytest.raises(WrongUse) as caught:
        parse_amount(text, "--to")
    assert parse_amount(str(caught.value).rpartition("write ")[2], "--to").percent == exact


@given(
    costs=st.dictionaries(
        st.integers(1, 50).map("i{}".format), st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12
    ),
    leave=st.integers(0, 15),
    data=st.data(),
)
def test_the_cheapest_leave_and_the_coordinator_last(
    costs: dict[str, tuple[int, int]], leave: int, data: st.DataObject
) -> None:
    last = data.draw(st.sampled_from(sorted(costs)))
    leaving = choose_leaving(costs, leave, last=last)
    assert len(leaving) == min(leave, len(costs) - 1) == len(set(leaving))
    staying = set(costs) - set(leaving)
    assert last in staying
    assert all(costs[gone] <= costs[kept] for gone in leaving for kept in staying - {last})


def test_who_has_the_least_to_move_leaves() -> None:
    """By the sizes that owners measure: bytes of tasks that no other instance has ready."""
    tasks = [TaskId(0, number) for number in range(3)]
    world = ScenarioCluster(Settings())
    names = ("S1", "S2", "S3")
    world.declare([Task(task) for task in tasks], {name: [task] for name, task in zip(names, tasks, strict=True)})

    def leaving(**mib: int) -> list[str]:
        for name, task in zip(names, tasks, strict=True):
            member = world.group.members.get(name)
            assert member is not None
            member.status = replace(member.status, facts={task: TaskFacts(0, mib[name] << 20, 0, 0)})
        return choose(world.group, to=parse_amount("2", "--to")).leaving

    assert leaving(S1=900, S2=3, S3=500) == ["S2"]
    assert leaving(S1=2, S2=3, S3=500) == ["S1"]
    assert leaving(S1=0, S2=0, S3=0) == ["S3"], "equal: the last by name, as the newest usually is"
