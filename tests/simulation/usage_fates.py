"""What must hold of usage and its totals, whatever was drawn: judged by the reports as sent, and the stream."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, Final, NamedTuple

from sluice.core.errors import RequestIdConflict
from sluice.core.metering import CallStatus
from sluice.core.reports import UsageReport
from sluice.repository import keys
from sluice.repository.events import USAGE_EVENT, encode_event
from sluice.repository.orgs import decode_org
from sluice.repository.wire import Item
from sluice.services.metering import Counted
from tests.simulation.local_days import day_at, start_ms, value_at
from tests.simulation.money_hosts import LABELS, MODELS, ORG, app_above, chain_of
from tests.simulation.scenario import Violated
from tests.simulation.stream import StreamRecord
from tests.simulation.usage_books import Attempt, book_of
from tests.simulation.world import World

MILLION: Final = 1_000_000
COUNTERS: Final = (
    "cost_usd_micros",
    "input_tokens",
    "output_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "cache_write_1h_tokens",
    "requests",
    "errors",
    "unpriced",
)


class Name(NamedTuple):
    """What is counted together."""

    entity: str
    label: str
    day: str


class Stored(NamedTuple):
    """An event as it was put, and the report that it comes from."""

    record: StreamRecord
    attempt: Attempt
    report: UsageReport

    @property
    def item(self) -> Any:
        return self.record.new


class Events:
    """Of one world, by their keys, and by the request that put them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.by_key: dict[keys.Key, Stored] = {}
        self.by_request: dict[int, list[Stored]] = defaultdict(list)
        self.org = _org_of(world)
        attempts = book_of(world).attempts
        for record in world.table.stream:
            if _kind(record) != USAGE_EVENT:
                continue
            if record.old is not None or record.new is None:
                raise Violated(f"an event was changed or removed: {record}")
            attempt = attempts.get(record.cause) if isinstance(record.cause, int) else None
            if attempt is None:
                raise Violated(f"nobody reported that: {record}")
            stored = Stored(record, attempt, self._report(attempt, record.new))
            self.by_key[record.key] = stored
            self.by_request[attempt.request.number].append(stored)

    def under(self, reporter: str, request_id: str) -> list[Stored]:
        """On any day."""
        return [
            one
            for one in self.by_key.values()
            if (one.attempt.reporter, one.report.request_id) == (reporter, request_id)
        ]

    def day_of(self, item: Any) -> str:
        return day_at(self.org.settings.zones, item["occurred_at_ms"])

    def names(self, item: Any) -> list[Name]:
        """Whose counters it is to be added to."""
        settings = self.org.settings
        scope = value_at(settings.quota_scopes, start_ms(settings.zones, item["occurred_at_ms"]))
        entities = {item.get("app_id", ORG)} | ({ORG} if scope == "ORG" else set())
        return [Name(entity, item["label"], item["day"]) for entity in sorted(entities)]

    def _report(self, attempt: Attempt, item: Item) -> UsageReport:
        """The first of them that could have put it."""
        for report in attempt.reports:
            at_ms = report.occurred_at_ms or item["occurred_at_ms"]
            tokens = {kind: item.get(f"{kind.value}_tokens", 0) for kind in report.tokens}
            said = (report.request_id, at_ms, report.tokens)
            if said == (item["request_id"], item["occurred_at_ms"], tokens):
                return report
        raise Violated(f"{attempt} put another event: {item}")


def events_of(world: World) -> Events:
    """Once everybody is done."""
    if "events" not in world.notes:
        world.notes["events"] = Events(world)
    events: Events = world.notes["events"]
    return events


def counted_as_told(world: World) -> None:
    """Who was told of an event finds it, as it was put, once by whoever was first; who was refused left nothing."""
    events = events_of(world)
    for attempt in book_of(world).attempts.values():
        firsts: Counter[keys.Key] = Counter()
        for position, report in enumerate(attempt.reports):
            told = attempt.told(position)
            if isinstance(told, Counted):
                firsts += _check_counted(events, attempt, report, told)
            elif isinstance(told, RequestIdConflict) and all(
                one.report == report for one in events.under(attempt.reporter, report.request_id)
            ):
                raise Violated(f"no other report has that id: {report} of {attempt.request}")
        for stored in events.by_request[attempt.request.number]:
            answers = [attempt.told(at) for at, one in enumerate(attempt.reports) if one == stored.report]
            may_be = None in answers or firsts[stored.record.key] == 1
            if not may_be:
                raise Violated(f"{attempt.request} was told {answers} and has put {stored.item}")


def _check_counted(events: Events, attempt: Attempt, report: UsageReport, told: Counted) -> Counter[keys.Key]:
    """The key, if it was told to be the first."""
    found = [
        one
        for one in events.under(attempt.reporter, report.request_id)
        if encode_event(attempt.reporter, told.event) == one.item and one.report == report
    ]
    if len(found) != 1:
        raise Violated(f"{attempt.request} was told of {told.event}, there are {len(found)} of it")
    stored = found[0]
    if told.duplicate:
        return Counter()
    if stored.attempt is not attempt:
        raise Violated(f"{attempt.request} was told to be the first, and it was {stored.attempt.request}")
    return Counter((stored.record.key,))


def reports_count_once(world: World) -> None:
    """However often the same was sent: once if anybody was told so, in doubt at most once. Else not at all."""
    events, book = events_of(world), book_of(world)
    stored: Counter[tuple[str, int]] = Counter()
    told: Counter[tuple[str, int]] = Counter()
    unsure: Counter[tuple[str, int]] = Counter()
    places = {id(one.report): place for place, one in enumerate(book.intents)}
    for attempt in book.attempts.values():
        for position, report in enumerate(attempt.reports):
            where = attempt.reporter, places[id(report)]
            told[where] += isinstance(attempt.told(position), Counted)
            unsure[where] += attempt.told(position) is None
        for one in events.by_request[attempt.request.number]:
            stored[attempt.reporter, places[id(one.report)]] += 1
    for where in told.keys() | stored.keys():
        least, most = int(told[where] > 0), int(told[where] + unsure[where] > 0)
        if not least <= stored[where] <= most:
            raise Violated(f"{stored[where]} events of {book.intents[where[1]]}, right is {least} to {most}")


def events_are_right(world: World) -> None:
    """Each says what was reported, on the day of its instant, for the app above, at the price of its label."""
    events, book = events_of(world), book_of(world)
    made = {id(one.report): one for one in book.intents}
    for stored in events.by_key.values():
        item, report = stored.item, stored.report
        entity = report.entity or stored.attempt.reporter
        cost = _cost(report, book.factors)
        right = {
            "entity_id": entity,
            "app_id": app_above(entity, stored.attempt.reporter),
            "chain": chain_of(entity, stored.attempt.reporter),
            "day": events.day_of(item),
            "label": _label(report),
            "status": report.status.value,
            "lease_id": None if report.lease is None else report.lease.lease_id,
            "tags": dict(report.tags) or None,
            **{f"{kind.value}_tokens": count or None for kind, count in report.tokens.items()},
        }
        wrong = {name: (item.get(name), value) for name, value in right.items() if item.get(name) != value}
        if wrong or item.get("cost_usd_micros") not in cost:
            raise Violated(f"{item} of {made[id(report)]}: {wrong}, cost {cost}")
        _check_received(world, stored)


def _check_received(world: World, stored: Stored) -> None:
    """By the clock of whoever took it in."""
    request, received_ms = stored.attempt.request, stored.item["received_at_ms"]
    slowest_ms, fastest_ms = min(world.skews_ms), max(world.skews_ms)
    if not request.started_ms + slowest_ms <= received_ms <= stored.record.created_ms + fastest_ms:
        raise Violated(f"{request} came in at {received_ms}: {stored.record}")


def _label(report: UsageReport) -> str:
    known = {model: label for label, model in MODELS.items()}
    model_id = report.model_id or ""
    return report.label or known.get(model_id, model_id)


def _cost(report: UsageReport, factors: Iterable[int]) -> set[int | None]:
    """Under each price that there ever was."""
    label, tokens = _label(report), {kind.value: count for kind, count in report.tokens.items() if count}
    if label not in LABELS or not tokens.keys() <= {"input", "output"}:
        return {None}
    weighted = LABELS[label] * (tokens.get("input", 0) + 5 * tokens.get("output", 0))
    return {(factor * weighted + MILLION // 2) // MILLION for factor in factors}


def every_write_adds_its_events(world: World) -> None:
    """A write adds to each counter what its own events come to, and nothing else ever does."""
    events = events_of(world)
    for _, records in groupby(world.table.stream, key=lambda record: record.write):
        wanted: dict[Name, Counter[str]] = defaultdict(Counter)
        added: dict[Name, Counter[str]] = defaultdict(Counter)
        for record in records:
            kind = _kind(record)
            if kind == USAGE_EVENT:
                for name in events.names(record.new):
                    wanted[name].update(_counts(record.new))
            elif kind == "cost_shard":
                name = _name(record.new)
                if name in added:
                    raise Violated(f"two shards of one counter in one write: {record}")
                added[name] = _difference(record)
        if wanted != added:
            raise Violated(f"the events come to {dict(wanted)}, added were {dict(added)}")


def totals_are_sums(world: World) -> None:
    """To the micro-dollar: of the events. And nothing is due any more."""
    events = events_of(world)
    right: dict[Name, Counter[str]] = defaultdict(Counter)
    for stored in events.by_key.values():
        for name in events.names(stored.item):
            right[name].update(_counts(stored.item))
    found = {_name(item): _numbers(item) for item in world.table.items() if item.get("kind") == "daily_total"}
    for name in right.keys() | found.keys():
        if found.get(name) != _without_zeros(right[name]):
            raise Violated(f"the total of {name} is {found.get(name)}, its events come to {dict(right[name])}")


def totals_only_rise(world: World) -> None:
    """From write to write, all that is in them; and a mark gives way to later ones only, or is removed."""
    for record in world.table.stream:
        if _kind(record) != "daily_total" or record.old is None:
            continue
        if record.new is None:
            raise Violated(f"a total is gone: {record}")
        old, new = _numbers(record.old, "rev"), _numbers(record.new, "rev")
        fallen = [name for name in old if new.get(name, 0) < old[name]]
        risen = [name for name in new if new[name] > old.get(name, 0)]
        marks: Any = (record.old.get("due", 0), record.new.get("due", record.old.get("due", 0)))
        if fallen or (risen and "rev" not in risen) or marks[0] > marks[1]:
            raise Violated(f"{fallen or risen} fell, or rose alone, or was marked for earlier: {record}")


def buckets_know_nothing_of_usage(world: World) -> None:
    """What a lease took stays taken, whatever is reported of its call."""
    attempts = book_of(world).attempts
    for record in world.table.stream:
        if _kind(record) == "bucket" and record.cause in attempts:
            raise Violated(f"a report changed a bucket: {record}")


def leases_close_once(world: World) -> None:
    """By the first report, if not before, unless their time is over; and with what they had by then."""
    unsure_ms = world.longest_request_ms + max(map(abs, world.skews_ms))
    leases = {lease.lease_id: lease for lease in book_of(world).leases}
    closed: set[keys.Key] = set()
    for _, records in groupby(world.table.stream, key=lambda record: record.write):
        own = list(records)
        for record in own:
            if _kind(record) == "lease":
                item: Any = record.new
                if record.key in closed:
                    raise Violated(f"a lease was closed and changed after that: {record}")
                if item["state"] != "open":
                    closed.add(record.key)
        for record in own:
            if _kind(record) != USAGE_EVENT or record.new is None or "lease_id" not in record.new:
                continue
            lease = leases[str(record.new["lease_id"])]
            is_closed = keys.lease(world.namespace, lease.lease_id) in closed
            if not is_closed and record.created_ms + unsure_ms < lease.expires_at_ms:
                raise Violated(f"lease {lease.lease_id} is open after {record}")


def _counts(item: Any) -> Counter[str]:
    counted = Counter({name: item.get(name, 0) for name in COUNTERS if name.endswith("_tokens")})
    counted["cost_usd_micros"] = item.get("cost_usd_micros", 0)
    counted["requests"] = 1
    counted["errors"] = int(item["status"] != CallStatus.OK.value)
    counted["unpriced"] = int("cost_usd_micros" not in item)
    return counted


def _difference(record: StreamRecord) -> Counter[str]:
    old, new = _numbers(record.old or {}, "rev"), _numbers(record.new or {}, "rev")
    difference = {name: new.get(name, 0) - old.get(name, 0) for name in old.keys() | new.keys()}
    if difference.pop("rev", 0) != 1:
        raise Violated(f"a shard was written without a new revision: {record}")
    return Counter(difference)


def _numbers(item: Mapping[str, Any], *more: str) -> dict[str, int]:
    """What is there and not zero."""
    return {name: item[name] for name in (*COUNTERS, *more) if item.get(name)}


def _without_zeros(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}


def _name(item: Any) -> Name:
    return Name(item["entity_id"], item["label"], item["day"])


def _kind(record: StreamRecord) -> object:
    item = record.new or record.old
    return None if item is None else item.get("kind")


def _org_of(world: World) -> Any:
    item = world.table.get(keys.org_settings(world.namespace))
    assert item is not None
    return decode_org(item)
