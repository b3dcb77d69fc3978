"""Who keeps the daily totals: aggregators that mark what grew, rollups beside each other, jobs; and the end, in peace.

Each item's records come in order, late, and at least once: a batch is cut where it failed, or comes again because
nobody learned how far the aggregator came. A third one reads stretches again that were handled, beside the others.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from zlib import crc32

from sluice.core.errors import Contended, Unavailable
from sluice.repository.counters import COST_SHARD, CounterName
from sluice.repository.keys import Key
from sluice.repository.totals import DAILY_TOTAL, total_key
from sluice.services.rollup import RollupRun
from sluice.services.rollup_jobs import SUM_TOTALS
from sluice.services.summing import OutOfTime
from tests.simulation.faults import INDEX_LAG_MOST_MS
from tests.simulation.money_hosts import APPS, ORG, Desk, money_of
from tests.simulation.paces import MINUTE_MS, pace_of
from tests.simulation.scenario import Violated
from tests.simulation.stream import StreamRecord
from tests.simulation.world import Client, Host, World

LANES: Final = 2
BATCH_MOST: Final = 10
LOOKS: Final = 8
"""In a turn. What was counted between two of them is marked at once."""
LOOK_AGAIN_MS: Final = 60
LOST_SHARE: Final = 0.1
PEACEFUL_ROUNDS: Final = 200
PEACEFUL_RUNS: Final = 8


@dataclass
class Stream:
    """How far each lane was handled. `done`: what need not come again. `seen`: how much of the table's stream.

    `handled_ms`: since when the totals of a record need no other mark, by its number in the stream. `batches`: the
    records of each, under the name that its writes are put down to. `runs`: when each run began, likewise.
    `whole_runs`: when each began and ended that failed nowhere and had time for all it saw. `loses`: now and then a
    batch fails too often, and is gone for a day.
    """

    lanes: list[list[StreamRecord]] = field(default_factory=lambda: [[] for _ in range(LANES)])
    done: list[StreamRecord] = field(default_factory=list)
    seen: int = 0
    handled_ms: dict[int, int] = field(default_factory=dict)
    batches: dict[Hashable, frozenset[int]] = field(default_factory=dict)
    runs: dict[Hashable, int] = field(default_factory=dict)
    whole_runs: list[tuple[int, int]] = field(default_factory=list)
    loses: bool = False

    def follow(self, world: World) -> None:
        """As the event source filters: counters alone."""
        for record in world.table.stream[self.seen :]:
            item = record.new or record.old
            if item is not None and item.get("kind") == COST_SHARD:
                self.lanes[crc32(record.key.pk.encode()) % LANES].append(record)
        self.seen = len(world.table.stream)


def stream_of(world: World) -> Stream:
    if "stream" not in world.notes:
        world.notes["stream"] = Stream()
    stream: Stream = world.notes["stream"]
    return stream


def add_keepers(world: World, turns: int) -> None:
    """Aggregators of every lane, one that reads again, and two rollups."""
    for lane in range(LANES):
        world.add_client(f"lane-{lane}", partial(_aggregate, lane=lane, turns=2 * turns))
    world.add_client("again", partial(_read_again, turns=turns))
    for number in range(2):
        world.add_client(f"rollup-{number}", partial(_roll_up, turns=turns))


def run_jobs(client: Client, turns: int) -> None:
    """Totals without a mark: of one entity when somebody asks, of all of them once a day."""
    world, random = client.world, client.random
    while client.done < turns:
        client.done += 1
        pace_of(world).wait(client)
        desk = money_of(world).of(client)
        _begin_run(world)
        try:
            if random.random() < 0.4:
                desk.money.entity_rollups.start(world.namespace, random.choice((ORG, *APPS)))
            if random.random() < 0.4:
                client.host.jobs.start_once(f"sum-totals-{random.randint(0, 1)}", SUM_TOTALS)
            run = client.host.jobs.run_open(desk.money.work, lambda: random.random() < 0.1)
        except (Contended, Unavailable):
            continue
        _check_failures([failure.error for failure in run.failures])


def _aggregate(client: Client, lane: int, turns: int) -> None:
    """As the function on the stream: one batch after the other, each until it is handled."""
    world, random = client.world, client.random
    while client.done < turns:
        client.done += 1
        pace_of(world).wait(client, often=2)
        desk = money_of(world).of(client)
        for _ in range(LOOKS):
            _deliver_next(world, desk, lane, random.randint(1, BATCH_MOST), random.choice((0, 0, 0, 1, 5)))
            client.wait(world.random_below(LOOK_AGAIN_MS))


def _read_again(client: Client, turns: int) -> None:
    """Whatever was handled, once more: as a redrive does."""
    world = client.world
    while client.done < turns:
        client.done += 1
        pace_of(world).wait(client)
        done = stream_of(world).done
        if done:
            first = world.random_below(len(done))
            _mark(world, money_of(world).of(client), done[first : first + 1 + world.random_below(BATCH_MOST)])


def _roll_up(client: Client, turns: int) -> None:
    world, random = client.world, client.random
    while client.done < turns:
        client.done += 1
        pace_of(world).wait(client)
        _check_failures(_run(world, money_of(world).of(client), lambda: random.random() < 0.05).failures)


def _run(world: World, desk: Desk, out_of_time: OutOfTime) -> RollupRun:
    begun_ms = _begin_run(world)
    run = desk.money.rollup.run(out_of_time)
    if not run.failures and not run.left:
        stream_of(world).whole_runs.append((begun_ms, world.scheduler.now_ms))
    return run


def _begin_run(world: World) -> int:
    """What the fiber writes from now on is put down to it."""
    runs, fiber = stream_of(world).runs, world.scheduler.current
    fiber.cause = f"run {len(runs)}"
    runs[fiber.cause] = world.scheduler.now_ms
    return world.scheduler.now_ms


def _deliver_next(world: World, desk: Desk, lane: int, size: int, overlap: int = 0) -> bool:
    """Whether there was anything. `overlap`: so many of what was done come again before the rest."""
    stream = stream_of(world)
    stream.follow(world)
    batch = stream.lanes[lane][:size]
    if not batch:
        return False
    if stream.loses and not world.network.calm and world.random.random() < LOST_SHARE:
        del stream.lanes[lane][:size]
        return True
    done = _mark(world, desk, batch)
    stream.done += batch[:done]
    stream.handled_ms |= {record.sequence: world.scheduler.now_ms for record in batch[:done]}
    # Another one may have come further meanwhile, after a crash.
    left = {record.sequence for record in batch[: max(0, done - overlap)]}
    stream.lanes[lane] = [record for record in stream.lanes[lane] if record.sequence not in left]
    return True


def _mark(world: World, desk: Desk, records: list[StreamRecord]) -> int:
    """How many are done. The next batch begins with the first that is not."""
    batches, fiber = stream_of(world).batches, world.scheduler.current
    fiber.cause = f"batch {len(batches)}"
    batches[fiber.cause] = frozenset(record.sequence for record in records)
    marked = desk.money.marking.mark([record.as_event() for record in records])
    fiber.cause = None
    _check_failures([failure.error for failure in marked.unmarked])
    return min((failure.position for failure in marked.unmarked), default=len(records))


def _check_failures(errors: object) -> None:
    """A fault of the table is nobody's fault; anything else is."""
    assert isinstance(errors, list | tuple)
    for error in errors:
        if not isinstance(error, Contended | Unavailable):
            raise error


def everything_is_rolled_up(world: World) -> None:
    """Once nobody uses anything any more and nothing fails, no total is due after a few minutes.

    Changes the world, and goes before whatever looks at all changes.
    """

    def work(host: Host) -> None:
        desk = money_of(world).at(host, world.scheduler.clock_ms)
        for _ in range(PEACEFUL_ROUNDS):
            if not any(_deliver_next(world, desk, lane, BATCH_MOST) for lane in range(LANES)):
                break
        else:
            raise Violated(f"records are left after {PEACEFUL_ROUNDS} rounds in peace")
        for _ in range(PEACEFUL_RUNS):
            world.scheduler.pause(MINUTE_MS)
            run = _run(world, desk, lambda: False)
            if run.failures:
                raise Violated(f"a rollup failed in peace: {run.failures}")
            if not _due(world):
                break
        else:
            raise Violated(f"still due after {PEACEFUL_RUNS} runs in peace: {_due(world)}")
        if stream_of(world).loses:
            _sum_all(world, desk)

    world.afterwards(work)


def _sum_all(world: World, desk: Desk) -> None:
    """The daily pass, which knows nothing of marks."""
    jobs = desk.host.jobs
    assert jobs.start_once("sum-totals-in-peace", SUM_TOTALS)
    for _ in range(PEACEFUL_RUNS):
        world.scheduler.pause(MINUTE_MS)
        _begin_run(world)
        run = jobs.run_open(desk.money.work, lambda: False)
        _check_failures([failure.error for failure in run.failures])
        if not run.left:
            return
    raise Violated(f"{run.left} jobs are open after {PEACEFUL_RUNS} runs in peace")


def _due(world: World) -> list[str]:
    return [
        f"{item['entity_id']} {item['day']} {item['label']}"
        for item in world.table.items()
        if item.get("kind") == DAILY_TOTAL and ("due" in item or "GSI3PK" in item or "GSI3SK" in item)
    ]


def marks_stay_until_summed(world: World) -> None:
    """Whoever removes a mark removes it from a total that has all that was marked before, by this mark or another."""
    stream = stream_of(world)
    grown: dict[Key, set[int]] = defaultdict(set)
    marked: dict[Key, set[int]] = defaultdict(set)
    for record in world.table.stream:
        item: Any = record.new or record.old
        if item["kind"] == COST_SHARD:
            name = CounterName(world.namespace, item["entity_id"], item["label"], item["day"])
            grown[total_key(name)].add(record.sequence)
        elif item["kind"] == DAILY_TOTAL:
            own = grown[record.key]
            marked[record.key] |= own & stream.batches.get(record.cause, frozenset())
            if record.old is not None and "due" in record.old and "due" not in item:
                handled = {
                    sequence
                    for sequence in own
                    if stream.handled_ms.get(sequence, record.created_ms) < record.created_ms
                }
                if item.get("rev", 0) < len(handled | marked[record.key]):
                    raise Violated(f"a mark was removed, and not all are in the total that it was for: {record}")


def whole_runs_leave_nothing_out(world: World) -> None:
    """Whatever was marked when a run began, as far as the index told, is in the totals when it ends, unless it failed
    or was cut. So with a run a minute no total is further behind, however steadily it is used."""
    stream = stream_of(world)
    marked_ms: dict[Key, list[int]] = defaultdict(list)
    revisions: dict[Key, list[tuple[int, int]]] = defaultdict(list)
    for record in world.table.stream:
        item: Any = record.new or record.old
        if item["kind"] == COST_SHARD and record.sequence in stream.handled_ms:
            name = CounterName(world.namespace, item["entity_id"], item["label"], item["day"])
            marked_ms[total_key(name)].append(stream.handled_ms[record.sequence])
        elif item["kind"] == DAILY_TOTAL:
            revisions[record.key].append((record.created_ms, item.get("rev", 0)))
    for key, times_ms in marked_ms.items():
        times_ms.sort()
        written = revisions[key]
        for begun_ms, ended_ms in stream.whole_runs:
            wanted = bisect_left(times_ms, begun_ms - INDEX_LAG_MOST_MS)
            place = bisect_right(written, ended_ms, key=lambda one: one[0])
            found = written[place - 1][1] if place else 0
            if found < wanted:
                raise Violated(f"a run from {begun_ms} to {ended_ms} left {wanted - found} writes out of {key}")
