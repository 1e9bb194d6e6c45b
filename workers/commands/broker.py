"""`orchestrator broker start|stop`: a real Kafka broker on this machine, for development and tests.

One rule: what it holds stays in its folder, so that a broker that is stopped and started again has its topics; to begin
anew, remove the folder. It is one node with one copy of everything, and not for production.
"""

from __future__ import annotations

from pathlib import Path

from orchestrator.cli.arguments import Parser, checked
from orchestrator.errors import WrongUse
from orchestrator.setting import whole_number
from workers.commands.show import show_json
from workers.log.logs import FOLDER


def run(argv: list[str]) -> int:
    """Runs `orchestrator broker`; its exit code. Raises WrongUse."""
    from state.log.kafka import broker

    parser = Parser("broker", "Start or stop a Kafka broker on this machine, for development.")
    parser.add_argument("action", metavar="start|stop", choices=("start", "stop"))
    parser.add_argument(
        "--folder", default=f"{FOLDER}/broker", metavar="PATH", help="where its log lies [default %(default)s]"
    )
    parser.add_argument(
        "--port",
        type=checked(whole_number),
        metavar="N",
        help=f"of a new broker [default {broker.PORT}]; the next port is its controller's",
    )
    parser.add_argument("--kafka", metavar="VERSION", help=f"of a new broker [default {broker.VERSION}]")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    if args.action == "stop" and (args.port or args.kafka):
        raise WrongUse("--port and --kafka are of a new broker; `broker stop` takes --folder alone")
    if args.port and args.port not in broker.PORTS:
        raise WrongUse(
            f"--port {args.port}: a port is 1 to {broker.PORTS[-1]}, because the next one is the controller's"
        )
    with broker.alone(Path(args.folder).absolute()):
        facts = _stop(args.folder) if args.action == "stop" else _start(args.folder, args.port, args.kafka)
    if args.json:
        show_json(facts)
    else:
        print(facts["text"])
    return 0


def _start(name: str, port: int | None, version: str | None) -> dict[str, object]:
    from state.log.kafka import broker

    folder = Path(name).absolute()
    found = broker.existing(folder)
    if found is None:
        if folder.exists() and any(folder.iterdir()):
            raise WrongUse(f"--folder {name}: it is not empty, and no broker lies there; name another folder")
        if broker.answers(port or broker.PORT):
            raise WrongUse(f"a broker answers on port {port or broker.PORT} already: use it, or name another --port")
        broker.check_port(port or broker.PORT)
        found = broker.prepare(folder, port or broker.PORT, version=version or broker.VERSION)
    elif (port or found.port, version or found.version) != (found.port, found.version):
        raise WrongUse(
            f"the broker in {name} is Kafka {found.version} on port {found.port}; leave --port and --kafka out, or name "
            "another --folder"
        )
    if found.pid is None:
        broker.check_port(found.port)
        seconds = found.launch()
        text = f"Kafka {found.version} is up after {seconds:.1f} s: --log kafka://{found.address}"
    else:
        text = f"Kafka {found.version} is up already: --log kafka://{found.address}"
    return {"log": f"kafka://{found.address}", "pid": found.pid, "version": found.version, "text": text}


def _stop(name: str) -> dict[str, object]:
    from state.log.kafka import broker

    found = broker.existing(Path(name).absolute())
    if found is None:
        raise WrongUse(f"--folder {name}: no broker lies there; name the folder that it was started with")
    stopped = found.stop()
    return {"stopped": stopped, "text": "stopped" if stopped else "no broker was running"}
