"""What makes large groups quick, and must not change what they decide: indexes, plans computed by the assignor process, stale plans."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.group import events as ev
from orchestrator.group.assignor_view import build_view
from orchestrator.group.invariants import check
from orchestrator.group.step import Group
from orchestrator.group.tables import Index, TaskTable
from orchestrator.model import JoinRequest, MemberStatus, Settings, Task, TaskId, TaskRange
from orchestrator.simulator.coordinator import Coordinator
from orchestrator.simulator.round import Counted, Round
from orchestrator.task_assignor.assign import assign_tasks
from orchestrator.task_assignor.staleness import still_valid
from orchestrator.task_assignor.view import LearnerView, MemberView, View
from tests.group.test_task_assignor import views

TASKS = [TaskId(0, n) for n in range(6)]
NAMES = ["A", "B", "C"]


@given(st.lists(st.tuples(st.sampled_from(TASKS), st.sets(st.sampled_from(NAMES)), st.sampled_from("sdb"))))
def test_both_sides_of_a_table_agree(changes: list[tuple[TaskId, set[str], str]]) -> None:
    touched: set[str] = set()
    table = TaskTable(lambda task, names: touched.update(names), Index[tuple[str, ...]](lambda names: names))
    for task, names, how in changes:
        before = {t: set(held) for t, held in table.items()}
        touched.clear()
        if how == "s":
            table[task] = tuple(sorted(names))
        elif how == "d":
            table.discard(task)
        else:
            table.become({**table, task: tuple(sorted(names))})
        for name in NAMES:
            assert set(table.of(name)) == {t for t, held in table.items() if name in held}
        assert set(table.named()) == {name for held in table.values() for name in held}
        assert touched >= set(table.get(task, ())) ^ before.get(task, set()), "a change that nobody hears of"


def view() -> View:
    """Two instances at rest, one learner on its way."""
    return View(
        tasks={task: Task(task) for task in TASKS},
        members={name: MemberView(name, name) for name in NAMES},
        active={task: NAMES[task.partition % 3] for task in TASKS},
        learners={TASKS[0]: LearnerView("B")},
    )


def test_a_plan_holds_as_long_as_nothing_changes() -> None:
    plan = assign_tasks(view())
    assert still_valid(plan, view(), view()) is plan


def test_nothing_holds_when_a_member_is_gone_or_leaves_or_settings_change() -> None:
    plan, asked = assign_tasks(view()), view()
    gone = {name: member for name, member in asked.members.items() if name != "C"}
    leaves = {**asked.members, "C": replace(asked.members["C"], leaving=True)}
    for now in (
        replace(asked, members=gone),
        replace(asked, members=leaves),
        replace(asked, settings=Settings(standbys=1)),
        replace(asked, given_up=frozenset({(TASKS[0], "B")})),
    ):
        assert still_valid(plan, asked, now) is None


def test_weights_may_change_but_tasks_may_not() -> None:
    plan, asked = assign_tasks(view()), view()
    heavier = {t: msgspec.structs.replace(task, weight=5) for t, task in asked.tasks.items()}
    assert still_valid(plan, asked, replace(asked, tasks=heavier)) is plan
    fewer = {t: task for t, task in asked.tasks.items() if t != TASKS[2]}
    stateless = {t: msgspec.structs.replace(task, stateful=False) for t, task in asked.tasks.items()}
    for tasks in (fewer, stateless):
        assert still_valid(plan, asked, replace(asked, tasks=tasks)) is None


def test_a_task_that_changed_keeps_what_it_has() -> None:
    asked = view()
    plan = replace(assign_tasks(asked), standbys={TASKS[1]: ("C",)})
    now = replace(asked, active={**asked.active, TASKS[1]: "C"}, learners={TASKS[0]: LearnerView("B", True)})
    holds = still_valid(plan, asked, now)
    assert holds is not None
    assert holds.active[TASKS[1]] == "C" and TASKS[1] not in holds.standbys, "a standby beside the new owner"
    assert holds.active[TASKS[0]] == "A" and holds.learners[TASKS[0]] == "B", "made ready after the plan"


def test_nothing_goes_to_whom_nobody_could_reach_any_more() -> None:
    """It fell silent while the plan was made: what was to go there stays, what it has it keeps."""
    asked = view()
    made = assign_tasks(asked)
    moved = {**made.active, TASKS[4]: "C"}
    plan = replace(made, active=moved, learners={**made.learners, TASKS[3]: "C"}, reassigned=frozenset(TASKS[3:]))
    assert still_valid(plan, asked, asked) is plan
    holds = still_valid(plan, asked, replace(asked, silent=frozenset({"C"})))
    assert holds is not None
    assert holds.active == made.active and holds.learners == made.learners


def test_a_stale_plan_never_restores_more_than_the_budget() -> None:
    asked = replace(view(), settings=Settings(max_learners_per_instance=1), learners={})
    plan = replace(assign_tasks(asked), learners={TASKS[0]: "B", TASKS[3]: "B"})
    now = replace(asked, learners={TASKS[5]: LearnerView("B")})
    holds = still_valid(plan, asked, now)
    assert holds is not None and holds.learners == {TASKS[5]: "B"}


@given(views().filter(lambda view: bool(view.tasks)), st.data())
@settings(max_examples=200, deadline=None)
def test_what_differs_keeps_what_it_has_and_the_rest_follows_the_plan(one: View, data: st.DataObject) -> None:
    differ = data.draw(st.sets(st.sampled_from(sorted(one.tasks))))
    asked = replace(one, settings=replace(one.settings, max_learners_per_instance=100))
    owners = data.draw(st.lists(st.sampled_from(sorted(one.members)), min_size=len(differ), max_size=len(differ)))
    now = replace(
        asked,
        active={**{t: o for t, o in one.active.items() if t not in differ}, **dict(zip(differ, owners, strict=True))},
        learners={t: it for t, it in one.learners.items() if t not in differ},
    )
    plan = assign_tasks(asked)
    holds = still_valid(plan, asked, now)
    assert holds is not None and holds.reassigned == plan.reassigned
    changed = {t for t in differ if asked.active.get(t) != now.active.get(t) or t in asked.learners}
    assert (holds is plan) == (not changed)
    for task in plan.reassigned:
        assert holds.active.get(task) == (now if task in changed else plan).active.get(task)
    for task in one.tasks:
        learner = now.learners.get(task)
        kept = (learner.member if learner else None) if task in changed else plan.learners.get(task)
        assert holds.learners.get(task) == kept
        copies = tuple(sorted(now.standbys.get(task, ()))) if task in changed else plan.standbys.get(task, ())
        assert holds.standbys.get(task, ()) == copies


class Watched(Counted):
    """After every step the owners that a placement sees are those that each task says of itself."""

    def after(self, coordinator: Coordinator) -> None:
        group = coordinator.group
        view = build_view(group)
        owners = {task: group.effective_owner(task) for task in group.tasks}
        assert view.active == {task: owner for task, owner in owners.items() if owner in view.members}
        had = {t: group.owners[t].member for t in group.tasks if t in group.owners}
        assert view.former == {t: name for t, name in had.items() if t not in view.active}


def test_a_view_says_of_all_owners_what_each_task_says() -> None:
    made = Round(6, 24, watch=Watched())
    made.run()  # nobody has anything
    made.group.hold(True)
    made.crash(2)
    made.run()  # fenced, and given to nobody yet
    made.group.hold(False)
    made.group.reconsider()
    made.join(7)
    made.run()
    version = (TaskRange(0, 0, 2), TaskRange(11, 0, 3))  # fewer tasks, and others
    for number in (8, 9):
        made.join(number, version)
    made.run()
    made.crash(0)
    made.run()
    old = tuple(made.nodes[number].join_request.instance for number in (1, 3, 4, 5, 7))
    made.send(ev.Leaving("down", old, None))  # what only they have is gone, and they have it still
    made.run()
    assert made.group.tasks.keys() == {TaskId(0, 0), TaskId(0, 1), TaskId(11, 0), TaskId(11, 1), TaskId(11, 2)}
    assert len(build_view(made.group).active) == 5


def test_a_round_is_the_same_computed_aside_or_at_once() -> None:
    ends = []
    for in_process in (False, True):
        made = Round(12, 120, at_rest=True)
        made.group.long_assignment = 0 if in_process else 1_000
        made.run()
        made.crash(7)
        made.run()
        made.join(12)
        steps = made.run()
        assert ("TargetComputed" in steps) is in_process
        check(made.group)
        assert not made.group.moves and not made.group.learners and made.group.computing is None
        loads = sorted(len(made.group.by_transactional_id.of(writer)) for writer in made.group.by_transactional_id)
        ends.append((made.handed_over, loads))
    assert ends[0] == ends[1] == (20, [10] * 12)


def test_heartbeats_with_nothing_new_touch_nothing() -> None:
    made = Round(12, 120, at_rest=True)
    made.group.long_assignment = 0  # so that a placement would be seen as a step of its own
    made.run()
    for node in made.nodes.values():
        node.report()
    steps = made.run()
    assert steps == {"Heartbeat": 12}
    assert not made.group.touched and not made.group.dirty


def test_an_answer_that_nobody_waits_for_any_more_is_dropped() -> None:
    group = Group(Settings(), [Task(task) for task in TASKS], long_assignment=0)
    join_request = JoinRequest("A", "A", "A#1", "A#1")
    asked = [e for e in group.step(ev.Joined(1, join_request, MemberStatus()), 0) if isinstance(e, ev.ComputeTarget)]
    assert [target.number for target in asked] == [1]
    plan = assign_tasks(asked[0].view)
    assert group.step(ev.TargetComputed(7, plan), 1) == []
    recorded = [e for e in group.step(ev.TargetComputed(1, plan), 2) if isinstance(e, ev.RecordOwners)]
    assert len(recorded[0].records) == len(TASKS)
    assert group.step(ev.TargetComputed(1, plan), 3) == [], "the same answer twice"


def test_plans_that_go_stale_again_and_again_are_made_at_once_in_the_end() -> None:
    group = Group(Settings(), [Task(task) for task in TASKS], long_assignment=0)
    for number in range(1, 10):
        join_request = JoinRequest(f"S{number}", f"S{number}", f"S{number}#1", f"S{number}#1")
        effects = group.step(ev.Joined(number, join_request, MemberStatus()), number)
        if any(isinstance(e, ev.RecordOwners) for e in effects):
            break
        stale = group.computing
        assert stale is not None
        group.step(
            ev.Joined(
                100 + number,
                msgspec.structs.replace(join_request, member=f"T{number}", writer=f"T{number}#1"),
                MemberStatus(),
            ),
            number,
        )
        effects = group.step(ev.TargetComputed(group.targets_asked, assign_tasks(stale)), number)
        if any(isinstance(e, ev.RecordOwners) for e in effects):
            break
    else:
        raise AssertionError("members that come and go kept everybody from working")


def bound(view: View, quota: int) -> int:
    """The most tasks that can be on a host that has caught up, with at most `quota` on each: by augmenting paths."""
    on: dict[str, set[TaskId]] = {host: set() for host in view.members}

    def put(task: TaskId, seen: set[str]) -> bool:
        hosts = {*view.standbys.get(task, ()), *([view.active[task]] if task in view.active else [])}
        for host in sorted(hosts - seen):
            seen.add(host)
            if len(on[host]) < quota or any(put(other, seen) and not on[host].discard(other) for other in [*on[host]]):
                on[host].add(task)
                return True
        return False

    return sum(put(task, set()) for task in sorted(view.tasks))


@given(st.integers(0, 1_000))
@settings(max_examples=20, deadline=None)
def test_most_of_what_could_be_balanced_on_warm_hosts_is(seed: int) -> None:
    """5 % of the hosts are lost and 10 % new: at least 95 % of the bound of tasks both balanced and caught up."""
    hosts, count = 40, 400
    members = {name: MemberView(name, name) for name in (f"S{n}" for n in range(hosts))}
    tasks = {TaskId(0, n): Task(TaskId(0, n)) for n in range(count)}
    start = assign_tasks(View(tasks, members, settings=Settings(standbys=1)))
    lost = {f"S{(seed * 7 + n * 13) % hosts}" for n in range(hosts // 20)}
    now = {name: m for name, m in members.items() if name not in lost}
    now |= {name: MemberView(name, name) for name in (f"T{n}" for n in range(hosts // 10))}
    after = View(
        tasks,
        now,
        active={t: m for t, m in start.active.items() if m not in lost},
        standbys={t: {m: 0 for m in ms if m not in lost} for t, ms in start.standbys.items()},
        settings=Settings(standbys=1, max_learners_per_instance=count),
    )
    plan = assign_tasks(after)
    quota = -(-count // len(now))
    warm: dict[str, int] = {}
    for task, owner in plan.active.items():
        host = plan.learners.get(task, owner)
        if host == after.active.get(task) or host in after.standbys[task]:
            warm[host] = warm.get(host, 0) + 1
    assert sum(min(n, quota) for n in warm.values()) >= 0.95 * bound(after, quota)
