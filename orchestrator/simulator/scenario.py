"""Scenarios: commands to a group, and what it then looks like. Interpreter and printer; scenario_files.py reads them.

One rule: a refused command changes nothing and prints `error: ...`; after every command the invariants are checked.
The grammar is in docs/scenarios.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from orchestrator.durations import UNITS_MS, parse_duration_ms, parse_size_bytes
from orchestrator.errors import OrchestratorError, WrongUse
from orchestrator.explain.task import explain_task
from orchestrator.group import invariants
from orchestrator.group.assignments import waits_for_hand_over
from orchestrator.group.members import is_released
from orchestrator.group.scale_plan import choose, parse_amount
from orchestrator.group.topology_versions import ranges
from orchestrator.model import PROTOCOL_ORDER, Protocol, Settings, Task, TaskId, TaskRange
from orchestrator.names import natural
from orchestrator.simulator.scenario_cluster import ScenarioCluster
from orchestrator.simulator.scenario_files import COMMANDS, Block
from orchestrator.simulator.scenario_files import parse as parse
from orchestrator.simulator.scenario_members import Member
from orchestrator.simulator.scenario_words import (
    event_order,
    free_id,
    number,
    parse_settings,
    scale_down_options,
    some,
    split_options,
    spoken,
    task_id,
)

DAY_MS = UNITS_MS["d"]
TICK_MS_MAX = 30 * DAY_MS


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one command did. `members` maps a name to its lists; `error` is set for a refused command."""

    command: str
    generation: int
    leader: str | None
    members: dict[str, dict[str, list[str]]]
    events: list[str] = field(default_factory=list)
    error: str | None = None
    text: str = "ok"


class Scenario:
    """Runs commands on a cluster."""

    def __init__(self) -> None:
        self.cluster = ScenarioCluster(Settings())
        self.names: dict[str, TaskId] = {}
        self._declared = False

    # ---- running

    def run(self, block: Block) -> Outcome:
        """Run one command; a refused one is an outcome with `error`. Raises InvariantBroken."""
        cluster = self.cluster
        before = self._state()
        cluster.announcements.texts = []
        for node in cluster.nodes.values():
            node.revoked = []
        gone = {name for name, node in cluster.nodes.items() if not node.alive}
        try:
            answer = self._dispatch(block)
        except OrchestratorError as error:
            return Outcome(
                block.command,
                cluster.group.generation,
                cluster.leader(),
                self._members(gone),
                [],
                str(error),
                f"error: {error}",
            )
        invariants.check(self.cluster.group)
        events = sorted(map(self._named, self.cluster.announcements.texts), key=event_order) if not answer else []
        members = self._members(gone)
        outcome = Outcome(block.command, self.cluster.group.generation, self.cluster.leader(), members, events)
        if answer:
            return replace(outcome, text="\n".join(answer), events=answer)
        if self._state() == before and not events and not any(m["revoked"] for m in members.values()):
            return outcome
        if block.command.split()[0] == "group" and self.cluster.group.generation == 0:
            return outcome
        return replace(outcome, text=self._print(outcome))

    def _named(self, text: str) -> str:
        """An event with the names that the file gives its tasks."""
        names = {str(task): name for name, task in self.names.items()}
        return " ".join(names.get(word, word) for word in text.split(" "))

    def _dispatch(self, block: Block) -> list[str]:
        words = block.command.split()
        verb = " ".join(words[:2]) if " ".join(words[:2]) in COMMANDS else words[0]
        handler = COMMANDS.get(verb)
        if handler is None:
            raise WrongUse(f"unknown command '{verb}'; one of {', '.join(COMMANDS)}")
        arguments = words[len(verb.split()) :]
        if verb not in ("group", "config") and not self._declared:
            raise WrongUse(f"'{verb}' before 'group'; declare the tasks first")
        if verb != "group" and block.body:
            raise WrongUse(f"'{block.body[0]}': only a group block has more lines")
        if verb == "group":
            self._group(arguments, block.body)
            return []
        result: list[str] | None = getattr(self, handler)(arguments)
        return result or []

    # ---- commands

    def _group(self, words: list[str], body: tuple[str, ...]) -> None:
        names: dict[str, TaskId] = {}
        weights: dict[str, int] = {}
        for declared in words:
            word, equals, weight = declared.partition("=")
            weights[word] = number(word, weight) if equals else 1
            if word in names or not word:
                raise WrongUse(f"task {word} is declared twice" if word else f"'{declared}' names no task; write T1=3")
            names[word] = task_id(word, len(names))
        if len(set(names.values())) != len(names):
            names = {word: TaskId(0, index) for index, word in enumerate(names)}
        placed: dict[str, list[TaskId]] = {}
        taken: dict[TaskId, str] = {}
        for line in body:
            member, *tasks = line.split()
            if member in placed:
                raise WrongUse(f"member {member} stands twice in the group")
            placed[member] = []
            for word in tasks:
                task = names.get(word)
                if task is None:
                    raise WrongUse(f"{member} holds {word}, which the group does not declare")
                if task in taken:
                    raise WrongUse(f"{word} is placed on {taken[task]} and on {member}; a task has one owner")
                taken[task] = member
                placed[member].append(task)
        self.names = names
        self.cluster = ScenarioCluster(self.cluster.settings)
        self._declared = True
        self.cluster.declare([Task(task, weight=weights[word]) for word, task in names.items()], placed)

    def _config(self, words: list[str]) -> None:
        if not words:
            raise WrongUse("config without settings; write config key=value ...")
        self.cluster.settings = parse_settings(self.cluster.settings, words)
        for node in self.cluster.nodes.values():
            node.machine.settings = self.cluster.settings
        if self._declared:
            self.cluster.group.reconsider(self.cluster.settings)
            self.cluster.tick(0)
            self.cluster.nudge()

    def _join(self, words: list[str]) -> None:
        name, options = split_options("join", words, ("instance", "capacity", "zone", "knows", "protocols"))
        if name in self.cluster.nodes:
            known = self.cluster.nodes[name]
            raise WrongUse(
                f"{name} is a member already" if known.alive else f"{name} was here before; use rejoin {name}"
            )
        capacity = number("capacity", options.get("capacity", "1"))
        speaks = spoken(options.get("protocols", ",".join(PROTOCOL_ORDER)))
        tasks = self._version(options.get("knows"))
        zone = options.get("zone", "")
        self.cluster.join(self.cluster.new_node(name, options.get("instance", name), capacity, zone, tasks, speaks))

    def _version(self, knows: str | None) -> tuple[TaskRange, ...] | None:
        """The tasks of a version of the app, as `knows=T1,T2` names them; names that are new are declared by it."""
        if knows is None:
            return None
        words = knows.split(",")
        if "" in words or len(set(words)) < len(words):
            raise WrongUse(f"knows={knows}: write each task once, as in knows=T1,T2")
        names = dict(self.names)
        for word in words:
            if word not in names:
                found = task_id(word, len(names))
                names[word] = found if found not in names.values() else free_id(names.values())
        self.names = names
        return ranges(self.cluster.tasks.get(names[word], Task(names[word])) for word in words)

    def _grow(self, words: list[str]) -> None:
        names = dict(self.names)
        if not words:
            raise WrongUse("grow what: write grow T5")
        for word in words:
            if word in names or "=" in word:
                raise WrongUse(f"grow {word}: " + ("it is there already" if word in names else "write names alone"))
            found = task_id(word, len(names))
            names[word] = found if found not in names.values() else free_id(names.values())
        new = [names[word] for word in words]
        self.names = names
        self.cluster.grow([Task(task, stateful=False) for task in new])

    def _ready(self, words: list[str]) -> None:
        if not words or len(words) > 2:
            raise WrongUse("ready MEMBER TASK, ready MEMBER *, or ready *")
        if words == ["*"]:
            waiting = [(node, task) for node in self._alive() for task in self.cluster.restoring(node)]
        else:
            node = self._running(words[0])
            if len(words) < 2:
                raise WrongUse("ready MEMBER TASK, ready MEMBER *, or ready *")
            restoring = self.cluster.restoring(node)
            if words[1] == "*":
                waiting = [(node, task) for task in restoring]
            else:
                task = self._task(words[1])
                if task not in restoring:
                    raise WrongUse(f"{node.name} restores no {words[1]}")
                waiting = [(node, task)]
        for node, task in waiting:
            self.cluster.ready(node, task)
        self.cluster.settle()

    def _weight(self, words: list[str]) -> None:
        if len(words) != 2:
            raise WrongUse("weight TASK NUMBER, as in weight T1 3")
        task, kind = self._task(words[0]), self.cluster.settings.weights
        measured = parse_size_bytes(words[1]) if kind == "bytes" else number("weight", words[1])
        if kind == "given":
            self.cluster.weigh(task, measured)
        else:
            self.cluster.measures[task] = measured

    def _leaving(self, words: list[str]) -> None:
        for node in [self._running(word) for word in some("leaving", words)]:
            self.cluster.leaving(node)

    def _scale_down(self, words: list[str]) -> None:
        if words == ["--undo"]:
            if not self.cluster.group.operations:
                raise WrongUse("no scale-down is running")
            self.cluster.undo_leaving()
            return
        options = scale_down_options(words)
        leader = self.cluster.leader()
        chosen = choose(
            self.cluster.group,
            to=parse_amount(options["--to"], "--to") if "--to" in options else None,
            by=parse_amount(options["--by"], "--by") if "--by" in options else None,
            instances=options["--instances"].split(",") if "--instances" in options else (),
            last=self.cluster.nodes[leader].join_request.instance if leader else None,
        )
        if chosen.leaving:
            timeout_ms = parse_duration_ms(options["--timeout"]) if "--timeout" in options else None
            self.cluster.mark_leaving(chosen.leaving, timeout_ms, "--force" in options)

    def _crash(self, words: list[str]) -> None:
        for node in [self._here(word) for word in some("crash", words)]:
            self.cluster.crash(node)

    def _stall(self, words: list[str]) -> None:
        for node in [self._running(word) for word in some("stall", words)]:
            self.cluster.stall(node)

    def _resume(self, words: list[str]) -> None:
        nodes = [self._here(word) for word in some("resume", words)]
        awake = [node.name for node in nodes if not node.stalled]
        if awake:
            raise WrongUse(f"{awake[0]} is not stalled")
        for node in nodes:
            self.cluster.resume(node)

    def _rejoin(self, words: list[str]) -> None:
        some("rejoin", words)
        names, options = words, dict[str, str]()
        if any("=" in word for word in words):
            name, options = split_options("rejoin", words, ("knows", "protocols"))
            names = [name]
        unknown = [name for name in names if name not in self.cluster.nodes]
        if unknown:
            raise WrongUse(f"no member {unknown[0]}; use join {unknown[0]}")
        speaks = spoken(options["protocols"]) if "protocols" in options else None
        for name in names:
            self.cluster.rejoin(self.cluster.nodes[name], self._version(options.get("knows")), speaks)

    def _restart(self, words: list[str]) -> None:
        if words:
            raise WrongUse("restart coordinator takes nothing more")
        self.cluster.restart_coordinator()

    def _depose(self, words: list[str]) -> None:
        if words:
            raise WrongUse("depose coordinator takes nothing more")
        self.cluster.depose_coordinator()

    def _tick(self, words: list[str]) -> None:
        if len(words) != 1:
            raise WrongUse("tick DURATION, as in tick 30s")
        time = parse_duration_ms(words[0])
        if time > TICK_MS_MAX:
            raise WrongUse(f"tick {words[0]}: every heartbeat of it is played; write at most {TICK_MS_MAX // DAY_MS}d")
        self.cluster.tick(time)

    def _explain(self, words: list[str]) -> list[str]:
        if len(words) != 1:
            raise WrongUse("explain TASK")
        task = self._task(words[0])
        why, waiting = explain_task(self.cluster.group, task, {v: k for k, v in self.names.items()})
        return [*why, *waiting]

    # ---- looking things up

    def _alive(self) -> list[Member]:
        return [
            n for n in sorted(self.cluster.nodes.values(), key=lambda n: natural(n.name)) if n.alive and not n.stalled
        ]

    def _here(self, name: str) -> Member:
        node = self.cluster.nodes.get(name)
        if node is None or not node.alive:
            there = ", ".join(
                n.name for n in sorted(self.cluster.nodes.values(), key=lambda n: natural(n.name)) if n.alive
            )
            raise WrongUse(f"no member {name} is alive; there are {there or 'none'}")
        return node

    def _running(self, name: str) -> Member:
        node = self._here(name)
        if node.stalled:
            raise WrongUse(f"{name} is stalled; use resume {name} first")
        return node

    def _task(self, word: str) -> TaskId:
        task = self.names.get(word)
        if task is None:
            raise WrongUse(f"no task {word}; there are {', '.join(self.names)}")
        return task

    # ---- printing

    def _state(self) -> object:
        group, nodes = self.cluster.group, self.cluster.nodes
        held = {
            name: (row["active"], row["learning"], row["standby"]) for name, row in self._members(set(nodes)).items()
        }
        return group.generation, self.cluster.leader(), [(n.name, n.alive) for n in nodes.values()], held

    def _members(self, gone: set[str]) -> dict[str, dict[str, list[str]]]:
        """Rows of the members alive, and of those that shut down with this very command."""
        group, back = self.cluster.group, {task: name for name, task in self.names.items()}

        def show(tasks: object) -> list[str]:
            return sorted((back[t] for t in tasks), key=natural)  # type: ignore[attr-defined]

        rows: dict[str, dict[str, list[str]]] = {}
        for node in sorted(self.cluster.nodes.values(), key=lambda n: natural(n.name)):
            left = not node.alive and node.name not in gone and node.machine.finished
            if not node.alive and not left:
                continue
            transactional_id, member = node.join_request.writer, group.members.get(node.name)
            active = {t for t, o in group.owners.items() if o.writer == transactional_id}
            if member is not None and member.status.released:  # given up, and waiting for others behind a barrier
                active = {t for t in active if not is_released(group.owners[t], member)}
            learning = {
                t
                for t, m in group.learners.items()
                if m == node.name and (t in node.machine.held or not waits_for_hand_over(group, t))
            }
            learning |= {t for t, move in group.moves.items() if move.target == node.name and t in node.machine.held}
            standby = {t for t, names in group.standbys.items() if node.name in names} - active - learning
            rows[node.name] = {
                "active": show(active),
                "revoked": show(set(node.revoked) - (active if group.protocol is not Protocol.EAGER else set())),
                "learning": show(learning - active),
                "standby": show(standby),
            }
        return rows

    def _print(self, outcome: Outcome) -> str:
        columns = ["active", "revoked", "learning"]
        if self.cluster.settings.standbys > 0:
            columns.append("standby")
        lines = [f"generation {outcome.generation} leader {outcome.leader or '-'}"]
        cells = {n: [f"{c} [{', '.join(row[c])}]" for c in columns] for n, row in outcome.members.items()}
        name_width = max((len(name) for name in cells), default=0)
        widths = [max((len(row[i]) for row in cells.values()), default=0) for i in range(len(columns))]
        for name, row in cells.items():
            padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            lines.append(f"  {name.ljust(name_width)}  {'  '.join(padded)}".rstrip())
        return "\n".join([*lines, *outcome.events])
