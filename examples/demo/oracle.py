"""The tour's check, in a process of its own: Spark SQL over the input, against the live tables and outputs.

One rule: a check that could not run is a check that failed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from examples.flights_oracle import counts, verify
from pipeline.spark.session import spark_session


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    session = spark_session("flights-oracle", "local[2]")
    try:
        checks = verify(session, f"sqlite:{args.log}")
        counted = counts(session, f"sqlite:{args.log}")
    finally:
        session.stop()
    args.out.write_text(json.dumps({"checks": checks, "counts": counted}))
    print(f"{sum(check['ok'] for check in checks)} of {len(checks)} checks hold")
    return 0


if __name__ == "__main__":
    sys.exit(main())
