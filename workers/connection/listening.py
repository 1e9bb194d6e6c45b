"""Where an instance listens, and where others reach it: `--listen` and `--advertise` as host and port, and the port of each
instance of a fleet.

One rule: the address that others are given is one that they can reach, so it is never a wildcard. Pure.
"""

from __future__ import annotations

from typing import Any

from orchestrator.coordinator.tls import SCHEME
from orchestrator.errors import WrongUse
from orchestrator.instance_settings import PORT_MAX, InstanceSettings

LOOPBACK = "127.0.0.1"
WILDCARDS = ("0.0.0.0", "::", "*", "")


def place_of(text: str, flag: str = "--listen", *, advertised: str = "") -> tuple[str, int]:
    """`host:port`, or `host` for any free port; "": any free port of this machine alone. `advertised`: the address that others
    are given instead, so that this one may be a wildcard. Raises WrongUse."""
    if not text:
        return LOOPBACK, 0
    host, colon, port = text.rpartition(":") if not text.endswith("]") and text.count(":") != 0 else (text, "", "0")
    host = host.strip("[]")
    if colon and not (port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= PORT_MAX):
        raise WrongUse(f"{flag} {text[:80]}: '{port[:20]}' is no port; write HOST:PORT, with 0 for a free port")
    if host in WILDCARDS and not advertised:
        other = ", or give it with --advertise" if flag == "--listen" else ""
        raise WrongUse(f"{flag} {text[:80]}: name the address that other machines reach, such as 10.0.0.5:7000{other}")
    return host, int(port)


def reached_at(advertised: str, bound: str) -> str:
    """The address that others are given for an instance that listens at `bound`: that one, or the advertised place, with the
    port of `bound` where it names none."""
    if not advertised:
        return bound
    host, port = place_of(advertised, "--advertise")
    scheme = SCHEME if bound.startswith(SCHEME) else ""
    return f"{scheme}{f'[{host}]' if ':' in host else host}:{port or bound.rpartition(':')[2]}"


def place_of_instance(text: str, number: int, advertised: str = "") -> str:
    """The place of a fleet's instance: the first takes the port that was named, the others those behind it
    (any free one where there are none)."""
    host, port = place_of(text, advertised=advertised)
    if not text or not port:
        return text
    named = port + number - 1 if port + number - 1 <= PORT_MAX else 0  # a scale-up must not end a fleet
    return f"[{host}]:{named}" if ":" in host else f"{host}:{named}"


def metrics_port_of_instance(port: int, number: int) -> int:
    """The port where a fleet's instance serves its metrics, by the same rule; 0 where none does, or there is no port left."""
    named = port + number - 1
    return named if port and named <= PORT_MAX else 0


def places_in_fleet(first: InstanceSettings, number: int) -> dict[str, Any]:
    """The settings of a fleet's instance that are not those of its first one."""
    return {
        "listen": place_of_instance(first.listen, number, first.advertise),
        "advertise": place_of_instance(first.advertise, number),
        "metrics_port": metrics_port_of_instance(first.metrics_port, number),
    }
