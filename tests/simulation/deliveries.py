"""Histories of buckets, and how a stream may deliver them: again, in other pieces, in part, late, to two at once.

A history is made here, write by write, and its sums are kept on the way: what was consumed is known before anybody
reads a record. The stream delivers every record at least once, each item's in order at first. Then anything goes: a
batch that failed is cut, one that was counted comes again, a stretch is lost and read again much later, a consumer
crashes between two writes, and a second one counts the same records while the first is about to write.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, TypeVar
from zlib import crc32

from sluice.core.errors import Ambiguous, NotFound
from sluice.core.signals import Signal
from sluice.repository.keys import Key
from sluice.repository.retries import Conflict, NotSent, Retries, Throttled
from sluice.repository.wire import Item
from sluice.services.counting import Counting
from sluice.services.effects import Effects
from tests.fakes import CountingMeter, never_random
from tests.simulation.store import Call, PerfectWire, SimulatedStore
from tests.simulation.stream import StreamRecord
from tests.simulation.table import SimulatedTable

T = TypeVar("T")

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 86_400_000
# Ten minutes before the end of a day.
START_MS: Final = 1_800_057_600_000 + DAY_MS - 600_000
NAMESPACE: Final = "ns"
LIMITS: Final = ("rpm", "ttl", "gen", "c_", "v0", "total_events", "i_0")
"""Also names that look like attributes of a snapshot."""
WRITES: Final = 400
BATCH_MOST: Final = 60
AGAIN_SHARE: Final = 0.2
# Whoever reads the stream is late.
READ_AT_MS: Final = START_MS + 30 * HOUR_MS
ONE_A_DAY: Final = 1
"""How many generations a shard begins in a day of which stretches are lost: with the one before it there are two, and
of older ones what was lost stays lost."""

Where = tuple[str, str, str | None, str, int]
"""Entity, resource, fingerprint of per-call limits, window, its start."""


class Crashed(BaseException):
    """A consumer that ends between two calls."""


@dataclass
class Shard:
    """One item as it is. `generations`: how many it had, by day."""

    entity: str
    resource: str
    call: str | None
    number: int
    item: Item | None = None
    generations: Counter[int] = field(default_factory=Counter)

    @property
    def key(self) -> Key:
        name = self.resource if self.call is None else f"{self.resource}!{self.call}"
        return Key(f"{NAMESPACE}/BUCKET#{self.entity}#{name}#{self.number}", "#STATE")


class History:
    """Writes on several buckets over some hours, and what was consumed in each window."""

    def __init__(self, random: Random, writes: int, *, is_complete: bool) -> None:
        self.records: list[StreamRecord] = []
        self.sums: dict[Where, Counter[str]] = defaultdict(Counter)
        self._spans: dict[tuple[Where, int, int], list[int]] = {}
        self._random = random
        self._now_ms = START_MS
        self._generations = 0
        self._generations_most = 1_000 if is_complete else ONE_A_DAY
        self._shards = [
            Shard(f"user-{number % 2}", "gpt-4", call, shard)
            for number, call in enumerate((None, None, "fp"))
            for shard in range(random.choice((1, 2, 4)))
        ]
        pauses_ms = (5, 300, 20_000, 400_000)
        while len(self.records) < writes:
            self._now_ms += int(random.choice(pauses_ms) * random.random())
            self._write(random.choice(self._shards))

    def events(self) -> Counter[Where]:
        """The writes of each window, from the first to the last that consumed something."""
        events: Counter[Where] = Counter()
        for (where, _, _), versions in self._spans.items():
            events[where] += max(versions) - min(versions) + 1
        return events

    def _write(self, shard: Shard) -> None:
        if shard.item is None:
            self._make(shard)
            return
        drawn = self._random.random()
        if drawn < 0.8:
            self._consume(shard, self._random.choice((1, 500, 70_000)))
        elif drawn < 0.9:
            self._consume(shard, -self._random.choice((1, 300)))
        elif drawn < 0.96:
            # A split, a merge or a rebase: a write that consumes nothing.
            self._change(shard, {**shard.item, "shard_count": self._random.choice((1, 2, 4)), "v": _v(shard.item) + 1})
        elif self._may_make(shard):
            self._change(shard, None)

    def _may_make(self, shard: Shard) -> bool:
        """Also if it is made on the next day: who is gone now may come back then."""
        return shard.generations[self._now_ms // DAY_MS] < self._generations_most

    def _make(self, shard: Shard) -> None:
        if not self._may_make(shard):
            return
        shard.generations[self._now_ms // DAY_MS] += 1
        self._generations += 1
        drawn = self._random.random()
        # By an acquire, by a split, or moved from an older layout with all that was consumed there.
        version, consumed = (1, 700) if drawn < 0.6 else (1, 0) if drawn < 0.8 else (0, 9_999_000)
        limit = self._random.choice(LIMITS)
        item: Item = {
            **shard.key.attributes,
            "kind": "bucket",
            "ns": NAMESPACE,
            "entity_id": shard.entity,
            "resource": shard.resource,
            "shard": shard.number,
            "shard_count": 4,
            "v": version,
            "gen": self._now_ms * 1_000_000 + self._generations,
            "lh": "hash:4",
            f"b_{limit}_tk": -1,
            f"b_{limit}_tc": consumed,
        }
        if shard.call is not None:
            item["call_lh"] = shard.call
        self._change(shard, item)
        if version and consumed:
            self._tell(shard, item, limit, consumed)

    def _consume(self, shard: Shard, milli: int) -> None:
        assert shard.item is not None
        # Now and then a limit that was added since.
        limit = self._random.choice(LIMITS) if self._random.random() < 0.1 else _a_limit(shard.item)
        before: Any = shard.item.get(f"b_{limit}_tc", 0)
        item: Item = {**shard.item, "v": _v(shard.item) + 1, f"b_{limit}_tc": before + milli}
        self._change(shard, item)
        self._tell(shard, item, limit, milli)

    def _change(self, shard: Shard, new: Item | None) -> None:
        number = len(self.records)
        record = StreamRecord(number, shard.key, shard.item, new, self._now_ms, by_ttl=False, write=number, cause=None)
        self.records.append(record)
        shard.item = new

    def _tell(self, shard: Shard, item: Item, limit: str, milli: int) -> None:
        """Times in the stream are whole seconds, and so are the borders of hours."""
        for window, length_ms in (("hour", HOUR_MS), ("day", DAY_MS)):
            where = (shard.entity, shard.resource, shard.call, window, self._now_ms // length_ms * length_ms)
            self.sums[where][limit] += milli
            self._spans.setdefault((where, shard.number, int(str(item["gen"]))), []).append(_v(item))


def _v(item: Item) -> int:
    return int(str(item["v"]))


def _a_limit(item: Item) -> str:
    return next(name for name in item if name.endswith("_tc"))[2:-3]


class Tenants:
    """Only the one that these histories are of."""

    def require_active(self, namespace_id: str) -> None:
        if namespace_id != NAMESPACE:
            raise NotFound("there is no such namespace")


class FaultyWire(PerfectWire):
    """Loses answers before and after the write, lets somebody else in between, ends the consumer."""

    def __init__(self, random: Random, share: float, meanwhile: Callable[[], None]) -> None:
        self._random = random
        self._share = share
        self._meanwhile = meanwhile

    def carry(self, call: Call, apply: Callable[[], T]) -> T:
        drawn = self._random.random()
        if drawn >= self._share:
            return apply()
        kind = int(drawn / self._share * 7)
        if kind == 0:
            raise Throttled("throttled")
        if kind == 1:
            raise Conflict("conflict")
        if kind == 2:
            raise NotSent("not sent")
        if kind == 3:
            raise Ambiguous("lost before")
        if kind == 4:
            self._meanwhile()
            return apply()
        apply()
        if kind == 5:
            raise Ambiguous("lost after")
        raise Crashed


class Deliveries:
    """Delivers one history to two consumers on one table. `delivered`: how many records, each time that one came."""

    def __init__(self, seed: int, writes: int = WRITES) -> None:
        self._random = random = Random(f"deliveries {seed}")
        self.loses = random.random() < 0.5
        self.history = History(random, writes, is_complete=not self.loses)
        self.table = SimulatedTable(lambda: READ_AT_MS)
        self.meter = CountingMeter()
        self.delivered = 0
        self._events = [record.as_event() for record in self.history.records]
        self._of_item: dict[Key, list[int]] = {}
        for number, record in enumerate(self.history.records):
            self._of_item.setdefault(record.key, []).append(number)
        self._done: set[int] = set()
        self._share = random.choice((0.0, 0.05, 0.3))
        self._busy: int | None = None
        self._within = False
        self._consumers = [self._consumer(), self._consumer()]

    def run(self) -> None:
        random = self._random
        lanes = self._lanes()
        lost: list[list[int]] = []
        while any(lanes):
            lane = random.choice([lane for lane in lanes if lane])
            batch = lane[: random.randint(1, BATCH_MOST)]
            if self.loses and random.random() < 0.1:
                lost.append(batch)
                del lane[: len(batch)]
            else:
                del lane[: self._accepted(batch)]
            if random.random() < AGAIN_SHARE:
                self._again()
            if lost and random.random() < 0.05:
                self._redrive(lost.pop(random.randrange(len(lost))))
        random.shuffle(lost)
        for batch in lost:
            self._redrive(batch)
        self._again()

    def _lanes(self) -> list[list[int]]:
        """Records of one item stay in order; those of others may overtake them."""
        lanes: list[list[int]] = [[], []]
        for number, record in enumerate(self.history.records):
            lanes[crc32(record.key.pk.encode()) % 2].append(number)
        return lanes

    def _accepted(self, batch: list[int]) -> int:
        """How much of it need not come again. A batch that failed is cut before it comes again."""
        accepted = self._deliver(batch)
        if accepted < len(batch) and self._random.random() < 0.5:
            rest = batch[accepted:]
            accepted += self._deliver(rest[: (len(rest) + 1) // 2])
        # An overlap: nobody learned how far the consumer came.
        return max(0, accepted - self._random.choice((0, 0, 0, 1, 7)))

    def _redrive(self, batch: list[int]) -> None:
        while batch:
            batch = batch[self._deliver(batch) :]

    def _again(self) -> None:
        """A stretch of what was counted of one item, as if it were read again."""
        own = self._of_item[self._random.choice(self.history.records).key]
        first = self._random.randrange(len(own))
        stretch = own[first : first + self._random.randint(1, BATCH_MOST)]
        self._deliver([number for number in stretch if number in self._done])

    def _deliver(self, batch: list[int]) -> int:
        """To one that is not busy: how many of the records are done."""
        at = self._random.randrange(2) if self._busy is None else 1 - self._busy
        busy, self._busy = self._busy, at
        self.delivered += len(batch)
        try:
            counted = self._consumers[at].count([self._events[number] for number in batch])
        except Crashed:
            self._consumers[at] = self._consumer()
            return 0
        finally:
            self._busy = busy
        first = counted.first_uncounted
        done = len(batch) if first is None else first
        self._done.update(batch[:done])
        return done

    def _consumer(self) -> Counting:
        retries = Retries(lambda _ms: None, never_random, self.meter)
        store = SimulatedStore(self.table, FaultyWire(self._random, self._share, self._meanwhile), retries)
        return Counting(store, Tenants(), Effects(lambda: READ_AT_MS, never_random, lambda: "token", self.meter))

    def _meanwhile(self) -> None:
        """The other one counts some of the same, between this one's look and its write."""
        if self._busy is not None and not self._within:
            self._within = True
            self._again()
            self._within = False


def difference(deliveries: Deliveries) -> str | None:
    """How the snapshots differ from what was consumed; None where they do not."""
    history, events = deliveries.history, deliveries.history.events()
    found: dict[Where, tuple[dict[str, int], int]] = {}
    for item in deliveries.table.items():
        if item["kind"] != "snapshot":
            return f"a {item['kind']} was written"
        content: Any = item
        where: Where = (
            content["entity_id"],
            content["resource"],
            content.get("call_lh"),
            content["window"],
            content["window_start"],
        )
        sums = {name[2:]: content[name] for name in content if name.startswith("c_") and content[name]}
        found[where] = (sums, content["total_events"])
    for where in history.sums.keys() | found.keys():
        right = ({limit: milli for limit, milli in history.sums[where].items() if milli}, events[where])
        if found.get(where) != right:
            return f"{where}: counted {found.get(where)}, right is {right}"
    if not deliveries.loses and deliveries.meter.counts[Signal.STREAM_GAPS]:
        return "a gap where nothing was lost"
    return None
