"""`orchestrator secret APP`: where the application's secret is, and files with a part of its rights.

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
from workers.connection.credentials import client_path, read_secret, renew
from workers.fleet.client import description, log_of
from workers.fleet.presence import is_looked_after


def run(argv: list[str]) -> int:
    """Runs `orchestrator secret`; its exit code. Raises WrongUse."""
    parser = Parser("secret", "Show where the application's secret is; make a file that allows less.")
    parser.add_argument("app", metavar="APP")
    parser.add_argument("--right", type=checked(Right.of), help="what the file shall allow: read, scale or join")
    parser.add_argument("--out", metavar="FILE", help="write that secret to a new file, private to you")
    parser.add_argument("--renew", action="store_true", help="make a new secret; nothing may run")
    parser.add_argument("--json", action="store_true")
    parser.settings(*PLACE, "secret-file")
    args = parser.parse_args(argv)
    if (args.right is None) != (args.out is None):
        raise WrongUse("--right and --out go together: what the file shall allow, and its name")
    if args.renew and args.right is not None:
        raise WrongUse("--renew and --right exclude each other; give one")
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
    lowered, out = secret.lowered(args.right), Path(args.out)
    try:
        if not publish(out, lowered.text().encode()):
            raise WrongUse(f"--out {out}: the file is there already; name another one")
    except OSError as error:
        raise WrongUse(f"--out {out} cannot be written: {error.strerror}; name another file") from None
    return _facts(out, lowered)


async def _renewed(log: GroupLog, application: str, path: Path) -> Secret:
    await description(log, application)  # raises WrongUse for an application that the log does not know
    if await is_looked_after(log, application):
        raise RefusedBySafety(f"'{application}' runs, and its instances know the secret of now; stop them first")
    return await renew(log, application, path)


def _facts(path: Path, secret: Secret) -> dict[str, Any]:
    return {"file": str(path), "right": secret.right.word, "fingerprint": secret.fingerprint()}
