"""An instance: the parent of its worker processes, and a candidate for coordinator.

One rule: the parent never touches a task. It starts workers, ends them, starts them again after a crash, kills one that
was stopped for longer than a session, and hosts the coordinator while it holds the lease.
Hosted by `orchestrator run` (a process) or by a Spark task; `run_instance` blocks until the instance is done.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections import Counter
from pathlib import Path

from orchestrator.coordinator.services import Services
from orchestrator.error_report import report, written_out
from orchestrator.errors import OrchestratorError
from pipeline.errors import PipelineError
from state.errors import DirectoryFull, LogReplaced, LogTimedOut, StateError
from state.log.protocol import GroupLog
from state.open_files import raise_limit
from state.private import private_process
from workers import log_lines
from workers.calls.blame import Blame, CallNote, note_path
from workers.connection.credentials import agree, in_renewal
from workers.connection.listening import place_of
from workers.end_watch import LIMIT_S, stopping_signals
from workers.instance import metrics_page
from workers.instance.candidate import Candidate
from workers.instance.instance_stores import InstanceStores
from workers.journal import Journal
from workers.log.patient_log import open_patiently
from workers.metrics.families import OF_INSTANCE, WORKER_CRASHES
from workers.metrics.measures import Measures
from workers.metrics.otlp import OtlpExport
from workers.metrics.server import MetricsServer
from workers.prepare import Prepared, prepare
from workers.spec import (
    BOUNCE,
    BOUNCED,
    FAILED_APP,
    LEAVE,
    LOG_REPLACED,
    NO_SPACE,
    REPORTED,
    STOP,
    InstanceSpec,
    WorkerSpec,
    decode_instance,
    first_line,
    refuse_another,
)
from workers.surroundings import OF_A_PROCESS, REAL, Surroundings, WorkerProcess
from workers.tasks import halts

log = logging.getLogger("orchestrator.instance")
RESTART_S, RESTART_MAX_S, STOP_S, WATCH_S = 0.2, 5.0, 15.0, 1.0
# What a worker reports that is not started again.
ENDS = (0, 1, 2, 3, LogTimedOut.exit_code, FAILED_APP, LOG_REPLACED, NO_SPACE)


def run_instance(spec: InstanceSpec, *, leash: int | None = None, surroundings: Surroundings = REAL) -> int:
    """Run until the instance left (0), was asked to stop (0), or failed (an exit code; the reason is on stderr). `leash`: a
    descriptor whose end means that the process which started the instance is gone; a line `STOP` in it is a SIGTERM,
    `BOUNCE` one that is a bounce whatever SIGTERM means, `LEAVE`: hand over, and end."""
    try:
        return asyncio.run(Instance(spec, leash, surroundings).run())
    except LogReplaced as error:
        if not spec.is_watched:
            report(error)
        return LOG_REPLACED
    except DirectoryFull as error:
        report(error)
        return NO_SPACE
    except (OrchestratorError, StateError, PipelineError) as error:
        return report(error)


class Instance:
    """One instance's parent process."""

    def __init__(self, spec: InstanceSpec, leash: int | None = None, surroundings: Surroundings = REAL) -> None:
        self.spec = spec
        self._surroundings = surroundings
        self._leash = leash
        self._workers: dict[int, WorkerProcess] = {}
        self._request: bytes | None = None  # what every worker was asked, also for one that is started later
        self._stop = asyncio.Event()
        self._signals: Counter[str] = Counter()
        self._code = 0  # what it ends with where its workers have no reason
        self._must_end = False  # its host goes
        self._sent_away = False  # by the group, asked by nobody here
        self._careful: set[int] = set()
        self._blamed: dict[int, list[Blame]] = {}
        self._incarnation = spec.start or surroundings.new_id()
        self._incarnations: dict[int, str] = {}  # of the processes that are the workers now
        self._address = ""
        self._measures = Measures(OF_INSTANCE)

    async def run(self) -> int:
        """See run_instance. Handlers of signals are set before the journal names the process to send them to."""
        app = self._surroundings.load_app(self.spec.app, Path(self.spec.folder))
        refuse_another(app.id, self.spec)
        directory = self._surroundings.open_directory(Path(self.spec.state_dir), app.id, self.spec.instance)
        self._app, self._directory = app, directory
        journal = self._surroundings.open_journal(directory.path / "journal.jsonl", {"instance": self.spec.instance})
        self._listen()
        journal.write("instance", pid=os.getpid(), attempt=self.spec.attempt)
        self._surroundings.remove_notes(directory.path)
        try:
            around, limit_s = self._surroundings, self.spec.log_timeout_ms / 1000
            log_ = await open_patiently(lambda: around.open_log(self.spec), limit_s, around.clock)
            try:
                return await self._supervise(await prepare(log_, app), log_, journal)
            finally:
                await log_.close()
        finally:
            journal.write("instance ended", pid=os.getpid(), attempt=self.spec.attempt)

    async def _supervise(self, prepared: Prepared, log_: GroupLog, journal: Journal) -> int:
        self._log = log_
        services = await self._open_listener(log_)
        served = MetricsServer(lambda: metrics_page.written(self.spec, self._measures, self._stores))
        if self.spec.metrics_port:
            await served.open(self.spec.metrics_host, self.spec.metrics_port)
        sent = OtlpExport(
            lambda: metrics_page.measured(self.spec, self._measures, self._stores),
            self.spec.application,
            self.spec.instance,
            self._surroundings.environment,
        ).open()
        around = self._surroundings, self._measures, journal.write, self._log_given_up
        candidate = Candidate(log_, prepared, self.spec, services, *around)
        coordinating = asyncio.create_task(candidate.run()) if self.spec.coordinate else None
        watching = asyncio.create_task(self._watch())
        self._surroundings.freeze()  # as a worker's: a walk over it takes longer than a task may be away, where this one coordinates
        try:
            codes = await asyncio.gather(*(self._keep(number) for number in range(1, self.spec.workers + 1)))
            code = max(*codes, self._code)
            await self._remove_state(code)
            stay = self._surroundings.end_within(LIMIT_S, code)
        except BaseException:
            stay = self._surroundings.end_within(LIMIT_S, 1)
            raise
        finally:
            watching.cancel()
            if coordinating is not None:
                candidate.over()
                coordinating.cancel()
                await asyncio.gather(coordinating, return_exceptions=True)
            await sent.close()
            await served.close()
            await services.close()
        if self.spec.after_leave == "park" and code == 0 and not self._must_end:
            stay()
            await self._stop.wait()  # left: for a supervisor that would start again what exits
        return code

    def _log_given_up(self, error: LogTimedOut) -> None:
        """The candidate cannot write to the log, a file that no process can write to then. Workers write only where there are records, and may
        never notice."""
        if not self._stop.is_set():
            self._code = report(error)
            self._stop_all()

    async def _remove_state(self, code: int) -> None:
        """What an instance that was sent away has on disk is of no use to another: copies of tasks that others have. Each scale-up
        has new names, so a fleet that grows and shrinks would leave more of it each time. The journal stays."""
        if code or not self._sent_away or self._stop.is_set() or self.spec.name_returns:
            return
        now_ms = self._surroundings.wall_ms() + 1
        try:
            removed = await asyncio.to_thread(self._directory.clean, (), delay_ms=0, now_ms=now_ms)
        except StateError as error:
            log.warning("%s has left, and what it had on disk stays: %s", self.spec.instance, error)
        else:
            log.info("%s has left; removed from disk: state of %d tasks", self.spec.instance, len(removed))

    async def _open_listener(self, log_: GroupLog) -> Services:
        """The one port of this instance: for workers that join (while it is the coordinator), clients and queries."""
        credentials = await in_renewal(self._surroundings.credentials, self.spec)
        await agree(log_, self.spec.application, credentials.secret)
        services = Services(credentials)
        self._stores = InstanceStores(
            self.spec.instance, self._incarnations.get, lambda: log_.lease(self.spec.application)
        )
        services.add(self._stores)
        self._address = await services.open(*place_of(self.spec.listen, advertised=self.spec.advertise))
        return services

    # ---- workers

    async def _keep(self, number: int) -> int:
        """One worker, started again after each crash, until it leaves, is stopped, or its app fails."""
        pause = RESTART_S
        if self._stop.is_set():  # asked before it began
            return 0
        while True:
            process = await self._start(number)
            code = await process.wait()
            reported = code - REPORTED if code >= REPORTED else None
            if (
                self._stop.is_set()
            ):  # another end than those is no failure of the instance: nothing is to be started again
                return reported if reported is not None and reported in ENDS else 0
            if reported == BOUNCED:
                self._stop_all()
                return 0
            if reported in ENDS:
                if reported:
                    self._stop_all()
                else:  # the group sent the instance away: a worker that it had not met yet is to go too
                    self._sent_away = self._sent_away or self._request is None
                    self._say(b"leave")
                return reported
            blame = self._note(number).read(code)
            if blame is not None and blame.stops(self._app) and self.spec.on_halt == "continue":
                halt = halts.of_failure(blame.error(), self._surroundings.wall_ms())
                if await halts.write(self._log, self.spec.application, blame.task, halt):
                    log.error("%s is halted: %s", blame.task, blame.error())
                blame = None
            elif blame is not None and blame.stops(self._app):
                report(blame.error())
                self._stop_all()
                return FAILED_APP
            self._crashed(number, code, blame)
            try:
                async with asyncio.timeout(pause):
                    await self._stop.wait()
                return 0  # asked to stop during the pause: nothing runs, nothing is to be started
            except TimeoutError:
                pass
            pause = min(RESTART_MAX_S, pause * 2)

    def _note(self, number: int) -> CallNote:
        return self._surroundings.open_note(note_path(self._directory.path, self._incarnations[number]))

    def _crashed(self, number: int, code: int, blame: Blame | None) -> None:
        """A worker ended without a report: the next one is careful, and leaves out the record that was found."""
        self._careful.add(number)
        self._measures.add(WORKER_CRASHES, 1)
        why = ""
        if blame is not None:
            self._blamed.setdefault(number, []).append(blame)
            why = f" ({blame.happened})"
        log.warning("worker %d of %s ended with %d%s; it is started again", number, self.spec.instance, code, why)

    async def _start(self, number: int) -> WorkerProcess:
        spec = WorkerSpec(
            self.spec,
            number,
            self._surroundings.new_id(),
            careful=number in self._careful,
            blamed=tuple(self._blamed.get(number, ())),
            address=self._address,
            instance_incarnation=self._incarnation,
        )
        self._incarnations[number] = spec.incarnation
        process = await self._surroundings.start_worker(spec)
        self._workers[number] = process
        if self._request is not None:
            process.send(self._request)
        return process

    def _say(self, request: bytes) -> None:
        self._request = request
        for process in self._workers.values():
            process.send(request)

    async def _watch(self) -> None:
        """A worker that was stopped (SIGSTOP) for longer than a session must not come back as a zombie."""
        stopped: dict[int, int] = {}
        limit = self.spec.settings.session_timeout_ms / 1000
        while True:
            await asyncio.sleep(WATCH_S)
            for number, process in self._workers.items():
                if process.returncode is None and process.is_stopped():
                    stopped[number] = stopped.get(number, 0) + 1
                    if stopped[number] * WATCH_S >= limit:
                        if (stopped[number] - 1) * WATCH_S < limit:  # once: a traced process does not end by this alone
                            log.warning("worker %d of %s was stopped for a session: killed", number, self.spec.instance)
                        process.kill()
                else:
                    stopped.pop(number, None)

    # ---- signals

    def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        for number in stopping_signals():
            loop.add_signal_handler(number, self._signal, "")
        if self._leash is not None:
            self._leashed = loop.create_task(self._hold_leash(self._leash))

    async def _hold_leash(self, descriptor: int) -> None:
        reader = asyncio.StreamReader()
        pipe = os.fdopen(descriptor, "rb", 0, closefd=False)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        while line := await reader.readline():
            if line == STOP:
                self._signal("leash")
            elif line == BOUNCE:
                self._stop_all()
            elif line == LEAVE and not self._stop.is_set():
                self._must_end = True
                self._say(b"leave")
        if not self._stop.is_set():  # its starter was killed: it may not come back
            self._stop_all(b"end")

    def _signal(self, source: str) -> None:
        """The first is a bounce (or with on_stop=leave a leave); the second stops at once. What ends a service may send one to
        each of its processes: that and the one that the fleet passes on are no second."""
        self._signals[source] += 1
        if self._signals[source] > 1:
            self._stop.set()
            self._say(b"stop")
            self._kill_all()
        elif self.spec.on_stop == "leave" and any(p.returncode is None for p in self._workers.values()):
            self._must_end = True  # whoever asked waits for that, and would kill what is parked
            self._say(b"leave")
        else:
            self._stop_all()

    def _stop_all(self, request: bytes = b"stop") -> None:
        self._stop.set()
        self._say(request)
        asyncio.get_running_loop().call_later(STOP_S, self._kill_all)

    def _kill_all(self) -> None:
        for process in self._workers.values():
            process.kill()


def main() -> int:
    """`python -m workers.instance.instance`: the spec is the first line of standard input. The pipe is a leash: when it ends,
    the process that started the instance is gone, and the instance stops in order."""
    private_process()
    raise_limit()
    spec = decode_instance(first_line())
    log_lines.set_up(spec.log_level, spec.log_format, spec.instance)
    return run_instance(spec, leash=0, surroundings=OF_A_PROCESS)


if __name__ == "__main__":
    sys.exit(written_out(main()))
