"""`orchestrator secret APP`: where the application's secret is, files with a part of its rights, and the first one, before its start.

One rule: a secret goes from file to file, and never to a terminal, a log or a command line.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from orchestrator.cli.arguments import Parser, checked
from orchestrator.cli.settings import PLACE
from orchestrator.coordinator.secret import Right, Secret
from orchestrator.errors import RefusedBySafety, WrongUse
from state.log.protocol import GroupLog
from state.private import publish
from workers.commands.show import show_json
from workers.connection.credentials import client_path, new_secret, read_secret, renew
from workers.fleet.client import application_of, description, log_of
from workers.fleet.presence import is_looked_after


def run(argv: list[str]) -> int:
    """Runs `orchestrator secret`; its exit code. Raises WrongUse."""
    parser = Parser("secret", "Show where the application's secret is; make a file that allows less.")
    parser.add_argument("app", metavar="APP")
    parser.add_argument("--right", type=checked(Right.of), help="what the file shall allow: read, scale or join")
    parser.add_argument("--out", metavar="FILE", help="write that secret to a new file, private to you")
    parser.add_argument("--renew", action="store_true", help="make a new secret; nothing may run")
    parser.add_argument(
        "--new", action="store_true", help="write the first secret of an application that has not started yet to --out"
    )
    parser.add_argument("--json", action="store_true")
    parser.settings(*PLACE, "secret-file")
    args = parser.parse_args(argv)
    if sum((args.renew, args.new, args.right is not None)) > 1:
        raise WrongUse("--renew, --new and --right exclude each other; give one")
    if (args.right is None and not args.new) != (args.out is None):
        raise WrongUse("--out goes with --right or --new: the name of the file, and what it shall allow")
    if args.new:
        application_of(args.app)
        facts = _written(Path(args.out), new_secret())
    else:
        facts = asyncio.run(_secret(args))
    if args.json:
        show_json(facts)
    else:
        print(f"{facts['file']}: allows to {facts['right']}; fingerprint {facts['fingerprint']}")
    return 0


async def _secret(args: Any) -> dict[str, Any]:
    async with log_of(args) as (application, log, url):
        path = client_path(application, url, args)
        if args.renew:
            return _facts(path, await _renewed(log, application, path))
        secret = read_secret(path)
    if args.right is None:
        return _facts(path, secret)
    return _written(Path(args.out), secret.lowered(args.right))


def _written(out: Path, secret: Secret) -> dict[str, Any]:
    try:
        if not publish(out, secret.text().encode()):
            raise WrongUse(f"--out {out}: the file is there already; name another one")
    except OSError as error:
        raise WrongUse(f"--out {out} cannot be written: {error.strerror}; name another file") from None
    return _facts(out, secret)


async def _renewed(log: GroupLog, application: str, path: Path) -> Secret:
    await description(log, application)  # raises WrongUse for an application that the log does not know
    if await is_looked_after(log, application):
        raise RefusedBySafety(f"'{application}' runs, and its instances know the secret of now; stop them first")
    return await renew(log, application, path)


def _facts(path: Path, secret: Secret) -> dict[str, Any]:
    return {"file": str(path), "right": secret.right.word, "fingerprint": secret.fingerprint()}
