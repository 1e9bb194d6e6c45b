"""Laws of the learner assignor, over random groups: what a plan may be, and where repeated plans come to rest."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.model import Protocol, Settings, Task, TaskId
from orchestrator.task_assignor.assign import assign_tasks
from orchestrator.task_assignor.view import LearnerView, MemberView, TargetAssignment, View


def has(member: MemberView, task: TaskId) -> bool:
    return member.knows is None or task in member.knows


@st.composite
def views(draw: st.DrawFn) -> View:
    """A group at rest or in trouble: members in instances, some leaving; tasks with owners, learners, copies, or none."""
    tasks = [TaskId(s, p) for s in range(draw(st.integers(1, 2))) for p in range(draw(st.integers(1, 7)))]
    instances = [f"I{n}" for n in range(1, draw(st.integers(1, 5)) + 1)]
    leaving = draw(st.sets(st.sampled_from(instances), max_size=len(instances) - 1))
    members: dict[str, MemberView] = {}
    for instance in instances:
        zone = draw(st.sampled_from(["", "a", "b"]))
        for number in range(draw(st.integers(1, 2))):
            name = f"{instance}.{number}"
            members[name] = MemberView(name, instance, draw(st.integers(1, 3)), zone, instance in leaving)
    for name in draw(st.sets(st.sampled_from(sorted(members)))):  # of another version of the app
        knows = frozenset(draw(st.sets(st.sampled_from(tasks))))
        members[name] = replace(members[name], knows=knows)
    every = sorted(members)
    tasks = [t for t in tasks if any(has(members[n], t) for n in every)]
    able = {t: [n for n in every if has(members[n], t)] for t in tasks}
    active = {t: draw(st.sampled_from(able[t])) for t in tasks if draw(st.booleans())}
    learners: dict[TaskId, LearnerView] = {}
    standbys: dict[TaskId, dict[str, int]] = {}
    for task in tasks:
        taken = {members[active[task]].instance} if task in active else set()
        free = [n for n in able[task] if members[n].instance not in taken]
        if free and draw(st.booleans()):
            learner = draw(st.sampled_from(free))
            learners[task] = LearnerView(learner, draw(st.booleans()))
            taken.add(members[learner].instance)
        free = [n for n in able[task] if members[n].instance not in taken]
        if free and draw(st.booleans()):
            standbys[task] = {draw(st.sampled_from(free)): draw(st.integers(0, 100))}
    chosen = Settings(
        standbys=draw(st.integers(0, 2)),
        balancing_factor=draw(st.integers(1, 3)),
        max_learners_per_instance=draw(st.integers(1, 5)),
    )
    weights = draw(st.sampled_from([st.just(1), st.integers(1, 3), st.sampled_from([1, 4, 32])]))
    stateful = {t: draw(st.booleans()) or t.subtopology == 0 for t in tasks}
    return View(
        tasks={t: Task(t, stateful=stateful[t], weight=draw(weights)) for t in tasks},
        members=members,
        active=active,
        learners={t: v for t, v in learners.items() if stateful[t]},
        learner_lags={t: draw(st.integers(0, 20_000)) for t in learners if stateful[t] and draw(st.booleans())},
        silent=frozenset(draw(st.sets(st.sampled_from(every), max_size=2))),
        standbys={t: v for t, v in standbys.items() if stateful[t]},
        protocol=draw(st.sampled_from([Protocol.LEARNER, Protocol.LEARNER, Protocol.COOPERATIVE])),
        settings=chosen,
    )


@given(views())
@settings(max_examples=150, deadline=None)
def test_every_task_has_one_owner_and_copies_keep_apart(view: View) -> None:
    plan = assign_tasks(view)
    assert plan.active.keys() == view.tasks.keys()
    for task in view.tasks:
        hosts = [plan.active[task], *plan.standbys.get(task, ())]
        if task in plan.learners:
            hosts.append(plan.learners[task])
        assert all(has(view.members[name], task) for name in hosts), f"{task}: {hosts} do not all know it"
        instances = [view.members[name].instance for name in hosts]
        assert len(instances) == len(set(instances)), f"{task}: {hosts}"
        standbys, before = plan.standbys.get(task, ()), view.standbys.get(task, {})
        assert len(standbys) <= view.settings.standbys + (not before.keys().isdisjoint(standbys))
        assert (
            len(before.keys() & standbys) >= min(view.settings.standbys, len(standbys) - 1)
            or len(standbys) <= view.settings.standbys
        ), "one more than wanted while it restores, and the others are there"
        if not view.tasks[task].stateful:
            assert task not in plan.learners and not plan.standbys.get(task)


@given(views())
@settings(max_examples=150, deadline=None)
def test_new_learners_stay_in_the_budget_and_current_ones_are_kept(view: View) -> None:
    plan = assign_tasks(view)
    if view.protocol is not Protocol.LEARNER:
        assert not plan.learners
        return
    before: dict[str, int] = {}
    for task, learner in view.learners.items():
        if not learner.ready and plan.learners.get(task) == learner.member:
            host = view.members[learner.member].instance
            before[host] = before.get(host, 0) + 1
    restoring = dict(before)
    for task, name in plan.learners.items():
        if task not in view.learners or view.learners[task].member != name:
            host = view.members[name].instance
            restoring[host] = restoring.get(host, 0) + 1
    for host, count in restoring.items():
        assert count <= max(view.settings.max_learners_per_instance, before.get(host, 0))
    for task, learner in view.learners.items():
        owner = view.active.get(task)
        unready = not learner.ready and not view.members[learner.member].leaving
        if unready and owner is not None and owner != learner.member:
            assert plan.learners.get(task) == learner.member, "a learner bounced half way"


@given(views(), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_the_order_of_arrival_does_not_matter(view: View, chance: object) -> None:
    def shuffled(mapping: object) -> dict:  # type: ignore[type-arg]
        items = list(mapping.items())  # type: ignore[attr-defined]
        chance.shuffle(items)  # type: ignore[attr-defined]
        return dict(items)

    other = replace(
        view,
        tasks=shuffled(view.tasks),
        members=shuffled(view.members),
        active=shuffled(view.active),
        learners=shuffled(view.learners),
        standbys=shuffled(view.standbys),
    )
    assert assign_tasks(view) == assign_tasks(other)


def carried_out(view: View, plan: TargetAssignment) -> View:
    """The group after the plan: every restore finished, every wish fulfilled."""
    return replace(
        view,
        active=dict(plan.active),
        learners={task: LearnerView(name, True) for task, name in plan.learners.items()},
        standbys={task: dict.fromkeys(names, 0) for task, names in plan.standbys.items()},
    )


@given(views())
@settings(max_examples=150, deadline=None)
def test_plans_come_to_rest_balanced_and_leavers_end_empty(view: View) -> None:
    view = replace(view, silent=frozenset())  # whom nobody can reach is waited for
    rounds = 6 * len(view.tasks) + 6
    for _ in range(rounds):
        plan = assign_tasks(view)
        after = carried_out(view, plan)
        if after == view or (plan.active == view.active and not plan.learners and assign_tasks(after) == plan):
            break
        view = after
    else:
        raise AssertionError(f"no rest after {rounds} rounds")
    plan = assign_tasks(view)
    assert not plan.learners and plan.active == view.active
    load: dict[str, int] = {}
    capacity: dict[str, int] = {}
    for member in view.members.values():
        capacity[member.instance] = capacity.get(member.instance, 0) + member.capacity
        load.setdefault(member.instance, 0)
    for task, name in plan.active.items():
        load[view.members[name].instance] += view.tasks[task].weight
    leaving = {m.instance for m in view.members.values() if m.leaving}
    known: dict[str, set[TaskId]] = {host: set() for host in load}
    for member in view.members.values():
        known[member.instance] |= {t for t in view.tasks if has(member, t)}
    for task, name in plan.active.items():
        host = view.members[name].instance
        assert host not in leaving or not any(task in known[h] for h in load.keys() - leaving), "a leaver kept a task"
    for a in load.keys() - leaving:
        for b in load.keys() - leaving:
            for task, name in plan.active.items():
                if view.members[name].instance != a or task not in known[b]:
                    continue
                least = view.settings.balancing_factor * view.tasks[task].weight
                assert load[a] * capacity[b] <= (load[b] + least) * capacity[a], f"{task} from {a} to {b}: {load}"


TASK = TaskId(0, 0)
CLOSE = Settings().acceptable_recovery_lag


def orphan(*, learner: int | None = None, silent: str = "", leaving: str = "", **lags: int) -> View:
    """A task that nobody runs. `S2=5`: a standby on S2 that is 5 behind; `disk_S2=5`: state on its disk."""
    names = ("S1", "S2", "S3", "S4")
    standbys = {name: lag for name, lag in lags.items() if not name.startswith("disk_")}
    disk = {name.removeprefix("disk_"): lag for name, lag in lags.items() if name.startswith("disk_")}
    return View(
        tasks={TASK: Task(TASK)},
        members={name: MemberView(name, name, leaving=name == leaving) for name in names},
        learners={} if learner is None else {TASK: LearnerView("S4")},
        learner_lags={} if learner is None else {TASK: learner},
        standbys={TASK: standbys},
        disk={TASK: disk},
        silent=frozenset([silent]) - {""},
        settings=Settings(standbys=2),
    )


@pytest.mark.parametrize(
    ("view", "owner"),
    [
        (orphan(learner=CLOSE + 1, S2=CLOSE), "S2"),  # close enough is as good as ready
        (orphan(learner=CLOSE + 1, disk_S2=CLOSE), "S2"),
        (orphan(learner=CLOSE, S2=CLOSE), "S4"),  # alike: the learner
        (orphan(learner=CLOSE + 2, S2=CLOSE + 3), "S4"),  # none is close: the least lag
        (orphan(learner=CLOSE + 3, S2=CLOSE + 2), "S2"),
        (orphan(S2=CLOSE + 2, disk_S3=CLOSE), "S3"),
        (orphan(S2=CLOSE, disk_S3=CLOSE), "S2"),
        (orphan(S2=3, S3=2), "S3"),
        (orphan(leaving="S2", S2=0, S3=CLOSE), "S3"),  # both are close: the one that stays
        (orphan(leaving="S2", S2=0, S3=CLOSE + 1), "S2"),  # a leaver that is close goes on until the other is
        (orphan(leaving="S2", S2=CLOSE + 1, S3=CLOSE + 2), "S3"),  # a restore that is not thrown away
        (orphan(silent="S2", S2=0, S3=CLOSE + 9), "S3"),  # it cannot be told
        (orphan(silent="S2", S2=0), "S2"),
        (orphan(silent="S1"), "S2"),  # cold, and the least loaded of those that can be told
    ],
)
def test_what_nobody_runs_goes_to_the_best_copy(view: View, owner: str) -> None:
    assert assign_tasks(view).active == {TASK: owner}


@pytest.mark.parametrize("protocol", Protocol)
@pytest.mark.parametrize("stateful", [True, False])
@pytest.mark.parametrize("owner", ["", "S1", "S3"], ids=["cold", "of a full host", "of a leaver"])
def test_who_cannot_be_reached_is_sent_nothing_more(protocol: Protocol, stateful: bool, owner: str) -> None:
    """S2 is empty, and silent: its share waits until it is back, and goes on where it is or where it can be told."""
    tasks = {t: Task(t, stateful) for t in (TaskId(0, n) for n in range(4))}
    members = {name: MemberView(name, name, leaving=name == "S3") for name in ("S1", "S2", "S3")}
    view = View(tasks, members, dict.fromkeys(tasks, owner) if owner else {}, protocol=protocol)
    assert "S2" in {*assign_tasks(view).active.values(), *assign_tasks(view).learners.values()}
    plan = assign_tasks(replace(view, silent=frozenset({"S2"})))
    assert plan.active.keys() == tasks.keys()
    assert "S2" not in {*plan.active.values(), *plan.learners.values()}


def test_a_leavers_task_goes_where_it_is_warm_before_where_there_is_room() -> None:
    """S1 is full and has a copy that is close: the leaver does not wait for a restore. One that is not close waits."""
    tasks = [TaskId(0, n) for n in range(4)]
    members = {name: MemberView(name, name, leaving=name == "S3") for name in ("S1", "S2", "S3")}
    active = {tasks[0]: "S1", tasks[1]: "S1", tasks[2]: "S2", tasks[3]: "S3"}
    for lag, target in ((CLOSE, "S1"), (CLOSE + 1, "S2")):
        view = View({t: Task(t) for t in tasks}, members, active, standbys={tasks[3]: {"S1": lag}})
        assert assign_tasks(view).learners[tasks[3]] == target
    on_disk = View({t: Task(t) for t in tasks}, members, active, disk={tasks[3]: {"S1": 0}})
    assert assign_tasks(on_disk).learners[tasks[3]] == "S2", "a move too many for what nobody put there"


def test_a_learner_takes_over_before_its_sibling_who_shares_its_folder() -> None:
    members = {name: MemberView(name, "I1") for name in ("S1", "S2")}
    view = View({TASK: Task(TASK)}, members, learners={TASK: LearnerView("S2")}, disk={TASK: {"I1": 0}})
    plan = assign_tasks(view)
    assert plan.active == {TASK: "S2"} and not plan.learners


def test_a_ready_learner_that_cannot_be_reached_takes_nothing_over() -> None:
    """Its owner would let go, and nobody would run the task until the other is back."""
    members = {name: MemberView(name, name) for name in ("S1", "S2")}
    view = View({TASK: Task(TASK)}, members, {TASK: "S1"}, {TASK: LearnerView("S2", ready=True)})
    assert assign_tasks(view).active == {TASK: "S2"}
    cut = assign_tasks(replace(view, silent=frozenset({"S2"})))
    assert cut.active == {TASK: "S1"} and cut.learners == {TASK: "S2"}


@given(st.integers(1, 12), st.integers(1, 3), st.integers(0, 3), st.integers(1, 2), st.sampled_from(list(Protocol)))
@settings(max_examples=100, deadline=None)
def test_standbys_spread_over_those_who_came_later_and_stay_there(
    partitions: int, hosts: int, more: int, wanted: int, protocol: Protocol
) -> None:
    """A group at rest on few instances, and then there are more. In each plan every task keeps as many close standbys as it
    had; in the end no instance has two copies more than another one that could have them, and nothing changes any more."""
    tasks = [TaskId(0, p) for p in range(partitions)]
    names = [f"I{n}" for n in range(1, hosts + more + 1)]
    view = View(
        tasks={t: Task(t) for t in tasks},
        members={name: MemberView(name, name) for name in names[:hosts]},
        settings=Settings(standbys=wanted, protocol=protocol),
        protocol=protocol,
    )
    kept = 0
    for turn in range(60):
        plan = assign_tasks(view)
        if turn == 10:
            kept = min(wanted, hosts - 1)
            view = replace(view, members={name: MemberView(name, name) for name in names})
            continue
        found = {t: dict.fromkeys(plan.standbys.get(t, ()), 0) for t in tasks}
        close = {t: sum(1 for m in found[t] if m in view.standbys.get(t, {})) for t in tasks}
        assert turn < 10 or (not plan.learners and not plan.reassigned) or min(close.values()) >= kept - 1
        if turn > 10 and not plan.reassigned and not plan.learners:
            assert min(close.values()) >= kept
        view = replace(
            view,
            active=plan.active,
            learners={t: LearnerView(m, True) for t, m in plan.learners.items()},
            standbys=found,
        )
    assert assign_tasks(view).standbys == {t: tuple(sorted(m)) for t, m in view.standbys.items() if m}
    copies = Counter([*plan.active.values(), *(m for found in plan.standbys.values() for m in found)])
    held = {t: {plan.active[t], *plan.standbys.get(t, ())} for t in tasks}
    for task, standbys in plan.standbys.items():
        for donor in standbys:
            free = [copies[name] for name in names if name not in held[task]]
            assert not free or copies[donor] <= min(free) + 1


@given(
    st.integers(1, 12),
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 4)), min_size=2, max_size=6),
    st.integers(1, 3),
    st.integers(1, 2),
)
@settings(max_examples=100, deadline=None)
def test_standbys_leave_the_zone_of_another_copy_once_there_is_a_zone_without(
    partitions: int, hosts: list[tuple[str, int]], first: int, wanted: int
) -> None:
    """Some instances are alone for a while, as where a zone is away: who comes then may be fuller than they are for its size, and
    the standbys stayed beside their task for ever. No close standby is given up on the way."""
    tasks = [TaskId(0, p) for p in range(partitions)]
    members = {f"I{n}": MemberView(f"I{n}", f"I{n}", capacity, zone) for n, (zone, capacity) in enumerate(hosts)}
    view = View(
        tasks={t: Task(t) for t in tasks},
        members=dict([*members.items()][:first]),
        settings=Settings(standbys=wanted),
    )
    for turn in range(80):
        if turn == 10:
            view = replace(view, members=members)
        plan = assign_tasks(view)
        if turn > 10 and not plan.reassigned and not plan.learners:
            for task in tasks:
                before = view.standbys.get(task, {}).keys()
                assert len(before & {*plan.standbys.get(task, ())}) >= min(len(before), wanted)
        view = carried_out(view, plan)
    assert assign_tasks(view) == plan, "it comes to rest"
    for task in tasks:
        held = [plan.active[task], *plan.standbys.get(task, ())]
        zones = [members[name].zone for name in held]
        free = {m.zone for m in members.values()} - {*zones}
        assert not free or len({*zones}) == len(zones), f"{task} is in {zones}, and nothing of it in {free}"
