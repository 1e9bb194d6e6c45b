"""A folder in which the command line is used as a user would, with real processes. One rule: whatever a test started,
and whatever that started in turn, is gone when the test is over, and a test that leaves something behind fails."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from orchestrator.cli.main import main

ROOT = Path(__file__).resolve().parent.parent.parent
DEADLINE_S = 90.0  # a machine at several times its load is no reason to fail; a test that fails is slow, and no other
WAIT = ("--timeout", f"{DEADLINE_S:.0f}s")  # of `orchestrator wait`


class Done(NamedTuple):
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Console:
    """Runs `orchestrator ...` in a folder."""

    def __init__(self, folder: Path, app: str = "bank") -> None:
        self.folder = folder
        self.app = app
        self.environment: dict[str, str] = {}
        self._background: list[subprocess.Popen[bytes]] = []
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def bank(self) -> Console:
        """The first example, as it is shipped."""
        self.write("bank.py", (ROOT / "examples/bank.py").read_text())
        return self

    # ---- commands

    def _words(self, words: tuple[str, ...]) -> list[str]:
        return [sys.executable, "-m", "orchestrator", *words]

    def _environment(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("ORCHESTRATOR_")}
        return {**clean, "PYTHONPATH": str(ROOT), **self.environment}

    def __call__(self, *words: str, stdin: str | bytes = b"", cwd: Path | None = None) -> Done:
        """Run a command to its end."""
        given = stdin.encode() if isinstance(stdin, str) else stdin
        process = subprocess.run(
            self._words(words),
            cwd=cwd or self.folder,
            env=self._environment(),
            input=given,
            capture_output=True,
            timeout=DEADLINE_S,
            check=False,
        )
        return Done(process.returncode, process.stdout.decode(), process.stderr.decode())

    def here(self, *words: str, stdin: str | bytes = b"") -> Done:
        """Run a command in this process: faster. What it imports from the folder is forgotten again."""
        out, err, back, path = io.StringIO(), io.StringIO(), Path.cwd(), list(sys.path)
        os.chdir(self.folder)
        kept, kept_in = dict(os.environ), sys.stdin
        sys.stdin = io.TextIOWrapper(io.BytesIO(stdin.encode() if isinstance(stdin, str) else stdin))
        sys.dont_write_bytecode = True
        for name in [name for name in os.environ if name.startswith("ORCHESTRATOR_")]:
            del os.environ[name]
        os.environ.update(self.environment)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                try:
                    code = main(words)
                except SystemExit as error:
                    code = int(error.code or 0)
        finally:
            sys.stdin = kept_in
            os.chdir(back)
            sys.path[:] = path
            for name, module in list(sys.modules.items()):
                if str(getattr(module, "__file__", None) or "").startswith(str(self.folder)):
                    del sys.modules[name]
            importlib.invalidate_caches()
            os.environ.clear()
            os.environ.update(kept)
        return Done(code, out.getvalue(), err.getvalue())

    def start(
        self,
        *words: str,
        name: str = "background",
        stdin: int = subprocess.DEVNULL,
        under: tuple[str, ...] = (),
        output: int | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a command and go on, `under` another one; its output is in `<name>.out` and `<name>.err`, or goes all to a
        descriptor."""
        return self._start([*under, *self._words(words)], name, stdin, output)

    def script(self, *words: str, name: str) -> subprocess.Popen[bytes]:
        """The same with a script of the user's own."""
        return self._start([sys.executable, *words], name)

    def _start(
        self, command: list[str], name: str, stdin: int = subprocess.DEVNULL, output: int | None = None
    ) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.out").open("ab") as out, (self.folder / f"{name}.err").open("ab") as err:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self._environment(),
                stdin=stdin,
                stdout=out if output is None else output,
                stderr=err if output is None else output,
            )
        self._background.append(process)
        return process

    def run(self, *words: str, instances: int = 1, wait: bool = True) -> subprocess.Popen[bytes]:
        """`orchestrator run` in the background, until its group is stable."""
        process = self.start("run", f"{self.app}:app", "--instances", str(instances), *words, name="run")
        if wait:
            done = self.here("wait", self.app, "--instances", str(instances), *WAIT)
            assert done.code == 0, (done, self.said("run"))
        return process

    def said(self, name: str) -> str:
        return "".join((self.folder / f"{name}.{kind}").read_text() for kind in ("out", "err"))

    def pay(self, *payments: tuple[str, int]) -> None:
        lines = [json.dumps({"key": k, "value": {"account": k, "amount": n}}) for k, n in payments]
        done = self.here("produce", f"{self.app}:app", "payments", stdin="\n".join(lines))
        assert done.code == 0, done

    # ---- waiting

    def balance(self, account: str) -> str:
        """What `query` prints once no payment waits: it asks for two seconds by itself, and a machine may be busy for longer."""
        answer = Done(1, "", "")

        def is_of_all() -> bool:
            nonlocal answer
            answer = self.here("query", self.app, "balances", account)
            return " in the inputs of " not in answer.err

        self.until(f"all payments of {account}", is_of_all)
        return answer.out

    def until(self, what: str, condition: Any) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not come about; run said: {self.said('run')}"
            time.sleep(0.05)

    def end(self, process: subprocess.Popen[bytes]) -> int:
        """The exit code of a command that ends by itself."""
        return process.wait(DEADLINE_S)

    # ---- the end

    def processes(self) -> list[int]:
        """Everything that runs with this folder as its current folder."""
        found: list[int] = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                if (entry / "cwd").readlink() == self.folder.resolve():
                    found.append(int(entry.name))
        return found

    def nothing_left(self) -> None:
        self.until("the end of all processes", lambda: not self.processes())

    def close(self) -> None:
        for process in self._background:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._background:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        deadline = time.monotonic() + 20
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert not left, f"processes {left} were left behind"


@contextlib.contextmanager
def console_of(app: ModuleType, folder: Path) -> Iterator[Console]:
    """A folder with the module of an app in it, which commands name by the last part of its name."""
    name = app.__name__.rpartition(".")[2]
    made = Console(folder, app=name)
    shutil.copy(str(app.__file__), made.folder / f"{name}.py")
    yield made
    made.close()
