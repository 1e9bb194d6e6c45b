"""`orchestrator spark pack --out env.tar.gz`: what executors must have beside Spark and Python, as one archive for `spark.archives`.

One rule: only what is installed here and needed there goes in: the distributions that our packages and the named ones require,
file by file as their RECORD lists them. Spark itself, Java and Python are the machine's. `bin/python` in it is the Python of the
machine with these packages behind its own path, so the archive works in whatever folder it is unpacked.
"""

from __future__ import annotations

import gzip
import io
import re
import sys
import tarfile
from collections.abc import Collection
from importlib import metadata
from pathlib import Path

from orchestrator.cli.arguments import Parser
from orchestrator.errors import WrongUse
from orchestrator.names import counted
from workers.commands.show import show_json

OURS, EXTRAS = "stream-orchestrator", ("spark", "kafka")
OF_SPARK = {"pyspark", "pyspark-client", "py4j"}  # executors run Spark's own
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")
LEVEL = 3  # of gzip
LAUNCHER = """#!/bin/sh
# Python {version} of this machine, with the packages beside this file.
here=$(cd "$(dirname "$0")/.." && pwd)
PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}$here/lib"
export PYTHONPATH
exec python{version} "$@"
"""


def run(argv: list[str]) -> int:
    """Runs `orchestrator spark pack`. Raises WrongUse."""
    parser = Parser("spark", "Pack what the executors of a cluster need for this project and for an app.")
    parser.add_argument("action", metavar="pack", choices=("pack",))
    parser.add_argument("--out", required=True, metavar="FILE.tar.gz", help="the archive")
    parser.add_argument(
        "--with",
        dest="names",
        action="append",
        default=[],
        metavar="DISTRIBUTION",
        help="an installed distribution that the app imports, such as requests; may be repeated",
    )
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    out = Path(args.out)
    if not args.out.endswith((".tar.gz", ".tgz")):
        raise WrongUse(f"--out {args.out}: Spark unpacks an archive by its name; write FILE.tar.gz")
    found = needed(args.names)
    files = pack(out, found)
    conf = [f"spark.archives={out}#environment", "spark.pyspark.python=./environment/bin/python"]
    facts = {"archive": str(out), "bytes": out.stat().st_size, "distributions": sorted(found), "conf": conf}
    if args.json:
        show_json(facts)
    else:
        print(f"{out}: {counted(len(found), 'distribution')}, {counted(files, 'file')}, {out.stat().st_size >> 20} MiB")
        print(f"use it with --conf {conf[0]} --conf {conf[1]}")
    return 0


def needed(names: Collection[str] = ()) -> dict[str, metadata.Distribution]:
    """The distributions that executors need, by normalised name. Raises WrongUse for what is no name, or not installed."""
    found: dict[str, metadata.Distribution] = {}
    for name in names:
        if not NAME.fullmatch(name):
            raise WrongUse(f"--with '{name}': name a distribution alone, without version or extras, such as requests")
    waiting = [(OURS, EXTRAS, ""), *((name, (), "--with ") for name in names)]
    seen: set[tuple[str, tuple[str, ...]]] = set()
    while waiting:
        name, extras, why = waiting.pop()
        name = _normal(name)
        if name in OF_SPARK or (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            if why:
                raise WrongUse(f"{why}{name}: it is not installed here; install it, then pack again") from None
            continue  # of an extra that is not used here, or of another system
        if name != OURS:  # which the driver sends along
            found[name] = distribution
        for text in distribution.requires or ():
            wanted = EXTRA.findall(text)  # one of several, as Poetry writes what two extras need
            if not wanted or not set(extras).isdisjoint(wanted):
                waiting.append((NAME.match(text)[0], _extras(text), ""))  # type: ignore[index]
    return found


def _extras(requirement: str) -> tuple[str, ...]:
    head = requirement.partition(";")[0]
    named = head.partition("[")[2].partition("]")[0]
    return tuple(sorted(word.strip() for word in named.split(",") if word.strip()))


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pack(out: Path, distributions: dict[str, metadata.Distribution]) -> int:
    """Write the archive; returns how many files it has. Raises WrongUse for a distribution that lists no files."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    draft = out.with_name(f".{out.name}.draft")
    written: set[str] = set()
    try:
        with (
            draft.open("wb") as raw,
            gzip.GzipFile("", "wb", LEVEL, raw, mtime=0) as zipped,
            tarfile.open(fileobj=zipped, mode="w|") as archive,
        ):
            launcher = LAUNCHER.format(version=version).encode()
            for name in ("python", "python3"):
                info = tarfile.TarInfo(f"bin/{name}")
                info.size, info.mode = len(launcher), 0o755
                archive.addfile(info, io.BytesIO(launcher))
            for name in sorted(distributions):
                _add(archive, distributions[name], written)
        draft.rename(out)
    except OSError as error:
        raise WrongUse(f"--out {out}: the archive cannot be written ({error.strerror})") from None
    finally:
        draft.unlink(missing_ok=True)
    return len(written)


def _add(archive: tarfile.TarFile, distribution: metadata.Distribution, written: set[str]) -> None:
    """The files that an installer has noted of a distribution, where Python imports them; no scripts. Raises WrongUse."""
    if distribution.files is None or _is_elsewhere(distribution):
        name = distribution.metadata["Name"]
        raise WrongUse(f"{name} is installed from a folder or without a list of its files; install it as a wheel")
    for file in distribution.files:
        parts = file.parts
        if ".." in parts or file.suffix in (".pyc", ".pth") or "__pycache__" in parts:
            continue
        path = Path(str(distribution.locate_file(file)))
        if path.is_file() and str(file) not in written:
            written.add(str(file))
            archive.add(path, f"lib/{file}", recursive=False, filter=_plain)


def _is_elsewhere(distribution: metadata.Distribution) -> bool:
    """Whether it is imported from a folder of its own (an editable installation)."""
    return '"editable": true' in (distribution.read_text("direct_url.json") or "")


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Nothing of the user who packs, so that the same packages are the same archive."""
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = 0
    info.mode = 0o755 if info.mode & 0o100 else 0o644
    return info
