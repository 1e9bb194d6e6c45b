"""Why a task stays on its instance, and what holds up balance or a leaver, in sentences.

One rule: instances, capacities and who stays are those that the assignor sees (task_assignor/assign.py), not counted anew here.
Used by task.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from orchestrator.explain.planning import some, time_left
from orchestrator.group.assignor_view import build_view
from orchestrator.group.members import Member
from orchestrator.group.state import GroupState
from orchestrator.model import TaskId
from orchestrator.task_assignor.builder import AssignmentBuilder


class Door(Enum):
    """Whether an instance may begin to take a task now."""

    OPEN = auto()
    UNKNOWING = auto()  # no worker of it has a version of the app with the task
    SILENT = auto()
    GIVEN_UP = auto()
    FULL = auto()  # of learners


@dataclass(frozen=True, slots=True)
class Host:
    """An instance: what it carries, counting tasks where their learners are, and how much it is made for."""

    name: str
    load: int
    capacity: int

    def is_above(self, load: int, other: Host) -> bool:
        """Whether this one is more loaded than `other` would be with `load`, each for its capacity."""
        return self.load * other.capacity > load * self.capacity


class Load:
    """The sentences on load about one task."""

    def __init__(self, group: GroupState, task: TaskId, name: str) -> None:
        self.group = group
        self.task = task
        self.name = name
        self.view = build_view(group)
        self.builder = AssignmentBuilder(self.view)
        self.weight = max(1, self.view.tasks[task].weight)
        self.least = max(1, group.settings.balancing_factor) * self.weight
        loads = dict.fromkeys(self.builder.hosts, 0)
        self.restoring = dict.fromkeys(self.builder.hosts, 0)
        for learning in self.view.learners.values():
            self.restoring[self.builder.host_of[learning.member]] += not learning.ready
        for each, facts in self.view.tasks.items():
            learner = self.view.learners.get(each)
            member = learner.member if learner is not None else self.view.active.get(each)
            if member is not None:
                loads[self.builder.host_of[member]] += max(1, facts.weight)
        self.hosts = {h: Host(h, loads[h], self.builder.capacity[h]) for h in self.builder.hosts}
        self.staying = [self.hosts[h] for h in self.builder.staying]

    # ---- who could have it

    def able(self) -> list[str]:
        """The instances that stay and have a version of the app with the task."""
        return [host.name for host in self.staying if self.builder.able(host.name, self.task)]

    def _door(self, host: Host) -> Door:
        builder, limit = self.builder, self.group.settings.max_learners_per_instance
        if not builder.able(host.name, self.task):
            return Door.UNKNOWING
        if host.name in builder.silent:
            return Door.SILENT
        if (self.task, host.name) in self.group.given_up:
            return Door.GIVEN_UP
        full = self.restoring[host.name] >= limit and not builder.is_free(self.task)
        return Door.FULL if full else Door.OPEN

    def _worth(self, mine: Host, other: Host) -> bool:
        return mine.is_above(other.load + self.least, other)

    # ---- why it is learned, or stays

    def why_learned(self, owner: Member | None, learner: Member) -> str:
        mine = self.hosts.get(owner.join_request.instance) if owner is not None else None
        other = self.hosts.get(learner.join_request.instance)
        if mine is None or other is None:
            return ""
        if mine.name in self.builder.leaving:
            return " because its owner is leaving"
        # As it was before the task was counted where it is learned.
        before = Host(mine.name, mine.load + self.weight, mine.capacity)
        balances = before.is_above(other.load - self.weight + self.least, other)
        return " to balance the load" if balances else ", which it began before, and finishes"

    def at_rest(self, holder: Member) -> Iterator[str]:
        """Why it does not go to a lighter instance."""
        mine = self.hosts.get(holder.join_request.instance)
        if mine is None or mine not in self.staying:
            return
        others = [host for host in self.staying if host != mine]
        doors = {host.name: self._door(host) for host in others}
        able = [host for host in others if doors[host.name] is not Door.UNKNOWING]
        if any(self._worth(mine, host) for host in able):
            return  # `waits` tells of these
        if not able and any(self._worth(mine, host) for host in others):
            yield f"{self._stays(mine)}: no other instance that stays has a version of the app with it"
        reachable = [host for host in able if doors[host.name] is not Door.SILENT]
        best = min(reachable, key=lambda host: (host.load + self.least) / host.capacity, default=None)
        if best is not None and mine.is_above(best.load, best):
            yield self._not_worth(mine, best)

    def _not_worth(self, mine: Host, best: Host) -> str:
        factor = max(1, self.group.settings.balancing_factor)
        if mine.capacity == best.capacity:
            lightest = all(best.load <= host.load for host in self.hosts.values() if host != mine)
            called = "the lightest instance" if lightest else "the lightest that may take it"
            heavy = f" times its weight of {self.weight}" if self.weight != 1 else ""
            return (
                f"{self._stays(mine)}, which carries {mine.load}; {called}, {best.name}, carries {best.load}, "
                f"and a move needs a difference of more than {factor}{heavy} (balancing_factor)"
            )
        setting = "balancing_factor" + (" times its weight" if self.weight != 1 else "")
        return (
            f"{self._stays(mine)}, which carries {mine.load} with a capacity of {mine.capacity}, that is "
            f"{mine.load / mine.capacity:.2f}; {best.name} carries {best.load} with a capacity of {best.capacity}, and "
            f"{self.least} more ({setting}) would make it {(best.load + self.least) / best.capacity:.2f}; a move needs "
            "that to be less"
        )

    def _stays(self, mine: Host) -> str:
        shared = len(self.builder.workers[mine.name]) > 1
        return f"{self.name} stays on {'instance ' if shared else ''}{mine.name}"

    # ---- what it waits for

    def waits(self, holder: Member) -> Iterator[str]:
        """Its instance leaves, or carries too much, and the task has no learner yet."""
        mine = self.hosts.get(holder.join_request.instance)
        if mine is None:
            return
        leaves = f"{holder.name} is leaving" if holder.is_leaving else f"the instance of {holder.name} is leaving"
        if mine.name in self.builder.leaving:
            doors = {host.name: self._door(host) for host in self.staying}
            yield from self._left(leaves, doors)
        elif mine.name in self._marked():
            others = "there is no other instance" if len(self.hosts) == 1 else "so is everybody else"
            yield f"{leaves}, and {others}; {self.name} stays until somebody joins"
        else:
            gains = [host for host in self.staying if host != mine and self._worth(mine, host)]
            yield from self._heavy(mine, gains)

    def _marked(self) -> set[str]:
        """Instances of which some worker leaves: then all of it does."""
        return {member.instance for member in self.view.members.values() if member.leaving}

    def _left(self, leaves: str, doors: dict[str, Door]) -> Iterator[str]:
        if Door.OPEN in doors.values():
            yield f"{leaves}; {self.name} goes to another instance with the next rebalance"
            return
        for host in [h for h in doors if doors[h] is Door.GIVEN_UP]:
            yield f"{leaves}, but {self._given_up(host)}"
        if full := [h for h in doors if doors[h] is Door.FULL]:
            restore = "restores" if len(full) == 1 else "restore"
            yield (
                f"{leaves}; {self.name} waits until {some(full, ' or ')} {restore} fewer than "
                f"{self.group.settings.max_learners_per_instance} (max_learners_per_instance)"
            )
        if silent := [h for h in doors if doors[h] is Door.SILENT]:
            yield f"{leaves}; {self.name} waits until {some(silent, ' or ')} can be reached again, or is given up"
        if all(door is Door.UNKNOWING for door in doors.values()):
            yield (
                f"{leaves}, and no instance that stays has a version of the app with {self.name}; it stays until one joins"
            )

    def _heavy(self, mine: Host, gains: list[Host]) -> Iterator[str]:
        """Balance would move it, or another task of its instance."""
        limit = self.group.settings.max_learners_per_instance
        for host in sorted(gains, key=lambda h: (h.load + self.least) / h.capacity):
            gap = f"{self._carries(mine, host)} and {self._carries(host, mine)}"
            match self._door(host):
                case Door.OPEN:
                    yield f"{gap}; the next rebalance moves something there"
                    return
                case Door.FULL:
                    yield (
                        f"{gap}; {self.name} may go there when {host.name} restores fewer than {limit} "
                        "(max_learners_per_instance)"
                    )
                    return
                case Door.GIVEN_UP:
                    yield f"{gap}, but {self._given_up(host.name)}"
                case Door.SILENT:
                    yield f"{gap}, but {host.name} cannot be reached at the moment"
                case Door.UNKNOWING:
                    pass  # that is why it stays (at_rest), and nothing that passes

    def _carries(self, host: Host, other: Host) -> str:
        made_for = f" with a capacity of {host.capacity}" if host.capacity != other.capacity else ""
        return f"{host.name} carries {host.load}{made_for}"

    def _given_up(self, host: str) -> str:
        timeout = self.group.settings.learner_timeout_ms
        until_ms = self.group.given_up[(self.task, host)] + 5 * timeout
        return (
            f"{host} gave up learning {self.name} after {time_left(timeout, 0)} without progress (learner_timeout); it is "
            f"tried there again in {time_left(until_ms, self.group.last_step_ms)}"
        )
