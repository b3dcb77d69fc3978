"""Runs one seed of one scenario again, and shows everything that happened in it."""

import argparse
import sys

from tests.simulation.paths import Path
from tests.simulation.reach import replayed
from tests.simulation.scenario import TRACE_WHOLE, SimulationFailure, Totals, run_seed
from tests.simulation.scenarios import SCENARIOS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.replay")
    parser.add_argument("--scenario", choices=sorted(SCENARIOS), required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument(
        "--aimed-at",
        action="append",
        choices=[path.name for path in Path],
        help="as where faults are aimed at this path; the seeds before it decide what is left, so they run too",
    )
    parser.add_argument("--last", type=int, default=TRACE_WHOLE, help="show only so many events")
    arguments = parser.parse_args()
    try:
        if arguments.aimed_at:
            paths = [Path[name] for name in arguments.aimed_at]
            world = replayed(SCENARIOS[arguments.scenario], paths, arguments.seed, kept=arguments.last)
        else:
            world = run_seed(SCENARIOS[arguments.scenario], arguments.seed, kept=arguments.last)
    except SimulationFailure as failure:
        sys.stdout.write(f"{failure}\n")
        return 1
    totals = Totals()
    totals.add(world)
    sys.stdout.write("\n".join([*world.trace.lines(), str(totals), ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
