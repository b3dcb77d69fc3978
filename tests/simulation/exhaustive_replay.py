"""Runs one order of one small scope again, and shows everything that happened in it."""

import argparse
import sys

from tests.simulation.exhaustive import replay
from tests.simulation.scenario import SimulationFailure
from tests.simulation.small_scopes import SCOPES
from tests.simulation.turns import LostAnswer


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.exhaustive_replay")
    parser.add_argument("--scope", choices=sorted(SCOPES), required=True)
    parser.add_argument("--choices", default="", help="who is next, with commas; then one after the other")
    parser.add_argument("--lost", help="a2: the answer to the second write of client a is lost")
    arguments = parser.parse_args()
    lost = None if arguments.lost is None else LostAnswer(arguments.lost[0], int(arguments.lost[1:]))
    try:
        world = replay(SCOPES[arguments.scope], [who for who in arguments.choices.split(",") if who], lost)
    except SimulationFailure as failure:
        sys.stdout.write(f"{failure}\n")
        return 1
    sys.stdout.write("\n".join([*world.trace.lines(), *(str(request) for request in world.history), ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
