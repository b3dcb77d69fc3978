"""`make compare`: prints the comparison and writes it into docs/benchmarks.md."""

import argparse
import os
import platform
import sys
import time

from bench.compare import table
from bench.compare.run import (
    BUSY_BURST,
    BUSY_DEMAND,
    BUSY_LEFT,
    CLIENTS,
    FULL,
    OURS,
    QUICK,
    RATE_PER_S,
    SPLIT_CAPACITY,
    THEIRS,
    Comparison,
)
from local import ROOT, reference
from local.engine import Engine
from local.process import LocalError


def main() -> int:
    parser = argparse.ArgumentParser(prog="make compare", description="Sluice beside zae-limiter on one engine.")
    parser.add_argument("--quick", action="store_true", help="about two minutes; prints and writes nothing")
    quick: bool = parser.parse_args().quick
    plan = QUICK if quick else FULL
    start_s = time.monotonic()
    comparison = Comparison(plan, lambda text: print(f"{time.monotonic() - start_s:4.0f} s  {text}", file=sys.stderr))
    on_reference = reference.available()
    try:
        with reference.ReferenceEngine() if on_reference else Engine() as engine:
            comparison.run(engine.endpoint)
    except LocalError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    setting = table.Setting(
        engine=f"DynamoDB Local {reference.VERSION}" if on_reference else "ministack (its read units are not right)",
        python=platform.python_version(),
        cores=os.cpu_count() or 1,
        clients=CLIENTS,
        rate_per_s=RATE_PER_S,
        busy_burst=BUSY_BURST,
        busy_left=BUSY_LEFT,
        busy_demand=BUSY_DEMAND,
        split_capacity=SPLIT_CAPACITY,
        slow_refill_s=plan.slow_refill_s,
    )
    text = table.section(setting, comparison.measured[OURS], comparison.measured[THEIRS])
    print(text)
    if not quick:
        table.rewrite(ROOT / "docs" / "benchmarks.md", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
