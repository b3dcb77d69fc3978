"""The scheduled runs of jobs: broken off, beside each other, and at last in peace to the end."""

from collections.abc import Callable, Mapping
from typing import Final

from sluice.core.errors import Contended, Unavailable
from sluice.repository.jobs import JobState
from sluice.services.jobs import Work
from tests.simulation.scenario import Violated
from tests.simulation.world import Client, Host, World

RUNS: Final = 12
RUNS_TO_THE_END: Final = 40
MINUTE_MS: Final = 60_000


def run_jobs(client: Client) -> None:
    """A run that ends too early is the rule here, so that steps are taken again by others."""
    world, random = client.world, client.random
    while client.done < RUNS:
        client.done += 1
        client.wait(world.random_below(random.choice((5_000, MINUTE_MS, MINUTE_MS))))
        try:
            run = client.host.jobs.run_open(client.host.work, lambda: random.random() < 0.2)
        except (Contended, Unavailable):
            continue
        world.notes.setdefault("failures", []).extend(run.failures)


def jobs_come_to_their_end(
    world: World, work_of: Callable[[Host], Mapping[str, Work]] = lambda host: host.work
) -> None:
    """None fails, whatever went wrong around it, and all are done once they are left in peace.

    Changes the world, and goes before whatever looks at all changes.
    """

    def run(host: Host) -> None:
        for _ in range(RUNS_TO_THE_END):
            world.scheduler.pause(MINUTE_MS)
            left = host.jobs.run_open(work_of(host), lambda: False)
            world.notes.setdefault("failures", []).extend(left.failures)
            if not left.left:
                return
        raise Violated(f"jobs are open after {RUNS_TO_THE_END} runs in peace")

    world.afterwards(run)
    if world.notes["failures"]:
        raise Violated(f"jobs failed: {world.notes['failures']}")
    for item in world.table.items():
        if item.get("kind") == "job" and item["state"] != JobState.DONE.value:
            raise Violated(f"a job is {item['state']}: {item}")
