"""The table and the picture of `orchestrator bench rebalance` in docs/. One rule: they are what the command prints."""

from __future__ import annotations

from pathlib import Path

from benchmarks.section import write_section
from orchestrator.cli.bench import COPIES, PROTOCOLS, heading, picture, rehearse, row
from orchestrator.simulator.benchmark.workload import DEFAULT, parse_workload

DOCS = Path(__file__).resolve().parent.parent / "docs"

TEXT = """\
## Rebalancing: what each protocol costs

`orchestrator bench rebalance` (`make bench-rebalance` writes this section) plays one workload under every protocol, in
virtual time, on the real coordinator and member cores; what takes time is modelled: messages 2 ms, a commit 30 ms, the
log 5 ms, replay 50 MiB/s and snapshots 200 MiB/s for each instance. The figures are the same on every machine.
`--workload FILE` plays yours, `--json` prints it, `--svg FILE` draws it.

```
{workload}```
```
{table}
```

![tasks by instance over time, a panel per protocol, no copies](rebalance.svg)

The words of a workload: `tasks N state=SIZE rate=RECORDS_PER_SECOND` or `tasks N stateless rate=...`; `instances N
workers=M`; `speeds restore= snapshot= record= message= commit= log= lease= snapshot_every=`; and `at TIME` with `join
N`, `leave N` (or a share of the instances, `50%`), `crash I1`, `return I1` or `failover`.
"""


def main() -> None:
    workload = parse_workload(DEFAULT)
    runs = list(rehearse(workload, list(PROTOCOLS), list(COPIES)))
    table = "\n".join([heading(workload), *map(row, runs)])
    print(table)
    write_section(DOCS / "benchmarks.md", "rebalance", TEXT.format(workload=DEFAULT, table=table))
    (DOCS / "rebalance.svg").write_text(picture(workload, runs))


if __name__ == "__main__":
    main()
