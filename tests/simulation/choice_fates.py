"""What must hold of selection, whatever was drawn: judged by what was stored, and by what could be read of it.

Whoever chooses has settings of the last minute, and totals and a stand that are a little old. So a choice is right if
it is right by some of what could be read then. A move is kept, so it goes by settings of its own request.
"""

import math
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, NamedTuple

from sluice.core.errors import AllQuotasExceeded
from sluice.core.orgs import NEW_APP, AppSettings, OrgSettings
from sluice.core.selection import Reason
from sluice.core.timelines import Timeline
from sluice.repository import keys, money_keys
from sluice.repository.orgs import decode_app, decode_org
from sluice.repository.sticky import STICKY_STATE
from sluice.services.definitions import AGAIN_MS
from sluice.services.definitions import CACHE_MS as LABELS_CACHE_MS
from sluice.services.selection import Selected, Selection
from sluice.services.settings import CACHE_MS
from tests.simulation.choices import LATE, PRICES, Asked, diary_of
from tests.simulation.faults import STALE_MOST_MS
from tests.simulation.local_days import day_at, end_ms, first_ms, value_at
from tests.simulation.money_hosts import ORG, money_of
from tests.simulation.rollups import stream_of
from tests.simulation.scenario import Violated
from tests.simulation.stream import StreamRecord
from tests.simulation.world import Host, World

OLDEST_MS: Final = CACHE_MS + STALE_MOST_MS + 1
"""How old the settings may be that somebody goes by."""
LONG_MS: Final = 60_000
"""Long enough for everybody to ask before the day ends."""


class Span(NamedTuple):
    """From when on something may have been read, and until when."""

    first_ms: int
    last_ms: int


class Age(NamedTuple):
    """How old what somebody goes by may be at most: settings, and what labels stand for."""

    settings_ms: int
    labels_ms: int


ANSWERED: Final = Age(OLDEST_MS, LABELS_CACHE_MS + 1)
KEPT: Final = Age(0, AGAIN_MS)


class Ground(NamedTuple):
    """What a choice may have been made by. `labels`: those that come into question, in their order."""

    labels: Sequence[str]
    quotas: Mapping[str, int]
    is_sticky: bool


@dataclass
class Versions:
    """Of one item, each with the time of its write. None: it is not there."""

    changes: list[tuple[int, Any]]

    def within(self, span: Span) -> list[Any]:
        before = [item for at_ms, item in self.changes if at_ms <= span.first_ms]
        return [before[-1] if before else None] + [
            item for at_ms, item in self.changes if span.first_ms < at_ms <= span.last_ms
        ]


class Past:
    """Everything that there ever was, of one world."""

    def __init__(self, world: World) -> None:
        self._versions: dict[keys.Key, Versions] = defaultdict(lambda: Versions([]))
        for record in world.table.stream:
            self._versions[record.key].changes.append((record.created_ms, record.new))
        self._namespace = world.namespace
        self.settings: OrgSettings = decode_org(self._org_item(world)).settings

    def grounds(self, whose: str, span: Span, age: Age = ANSWERED) -> Iterator[Ground]:
        """By settings and labels that old at most, those of the org and of the app from different moments."""
        wider = Span(span.first_ms - age.settings_ms, span.last_ms)
        defined = self._of(money_keys.label(self._namespace, LATE), Span(span.first_ms - age.labels_ms, span.last_ms))
        orgs = self._orgs(wider)
        apps: list[AppSettings] = [NEW_APP]
        if whose != ORG:
            key = keys.app_settings(self._namespace, whose)
            apps = [decode_app(item).settings for item in self._of(key, wider) if item]
        for org, app, knows_late in product(orgs, apps, {item is not None for item in defined}):
            quotas = {**org.quotas_usd_micros, **app.quotas_usd_micros}
            ordering = org.model_ordering if app.model_ordering is None else app.model_ordering
            labels = [label for label in ordering if label in quotas and (label != LATE or knows_late)]
            assert PRICES.keys() >= {*labels}
            yield Ground(labels, quotas, org.sticky_fallback_enabled)

    def zones(self, span: Span) -> list[Timeline[str]]:
        return [org.zones for org in self._orgs(Span(span.first_ms - OLDEST_MS, span.last_ms))]

    def stands(self, whose: str, day: str, span: Span) -> list[Any]:
        """As it was then; {} where there was none."""
        return [item or {} for item in self._of(money_keys.sticky(self._namespace, whose, day), span)]

    def spent(self, whose: str, day: str, label: str, span: Span) -> list[int]:
        """Whatever could be read of it: by the app, or by the org where quotas of that day are the org's."""
        items = self._of(money_keys.total(self._namespace, self._counted_by(whose, day), day, label), span)
        return [0 if item is None else item.get("cost_usd_micros", 0) for item in items]

    def _counted_by(self, whose: str, day: str) -> str:
        scope = value_at(self.settings.quota_scopes, first_ms(self.settings.zones, day))
        return ORG if scope == "ORG" else whose

    def _orgs(self, span: Span) -> list[OrgSettings]:
        return [decode_org(item).settings for item in self._of(keys.org_settings(self._namespace), span) if item]

    def _of(self, key: keys.Key, span: Span) -> list[Any]:
        return self._versions[key].within(span)

    @staticmethod
    def _org_item(world: World) -> Any:
        return world.table.get(keys.org_settings(world.namespace))


def past_of(world: World) -> Past:
    """Once everybody is done."""
    if "past" not in world.notes:
        world.notes["past"] = Past(world)
    past: Past = world.notes["past"]
    return past


def selection_moves_on(world: World) -> None:
    """Never back, never past a label with something left, away from nothing but what is spent, and by one of many.

    A new day begins without a label that it stands on, so with the first.
    """
    past, begun_ms = past_of(world), _begun_ms(world)
    for record in _of_kind(world, STICKY_STATE):
        old: Any = record.old or {}
        new: Any = record.new or {}
        moved = old.get("active_label") != new.get("active_label")
        overridden = _override(old) != _override(new)
        if moved and overridden:
            raise Violated(f"a move and an override in one write: {record}")
        if not moved:
            if old.get("activated_at") != new.get("activated_at"):
                raise Violated(f"moved to where it stood, so by a second one: {record}")
            continue
        _check_instants(world, past, record)
        whole = Span(begun_ms[record.cause], record.created_ms)
        span = Span(whole.first_ms - STALE_MOST_MS, whole.last_ms)
        grounds = past.grounds(new["entity_id"], whole, KEPT)
        if not any(_is_right_move(past, ground, old, new, span) for ground in grounds):
            raise Violated(f"no settings of {whole} say so: {record}")


def _is_right_move(past: Past, ground: Ground, old: Any, new: Any, span: Span) -> bool:
    whose, day = new["entity_id"], new["day"]
    passed = _passed(ground, old, new["active_label"])
    if not passed or not ground.is_sticky or passed[0] != new["previous_label"]:
        return False
    spent = all(max(past.spent(whose, day, label, span)) >= ground.quotas[label] for label in passed)
    left = min(past.spent(whose, day, new["active_label"], span)) < ground.quotas[new["active_label"]]
    return spent and left


def _passed(ground: Ground, stand: Any, chosen: str) -> Sequence[str]:
    """The labels from where it stood to the one before the chosen. Empty where that is not ahead."""
    if chosen not in ground.labels:
        return ()
    return ground.labels[_start(ground, stand) : ground.labels.index(chosen)]


def _check_instants(world: World, past: Past, record: StreamRecord) -> None:
    """It is of the day that it is, by the clock of whoever moved it."""
    item: Any = record.new
    begun_ms = _begun_ms(world)[record.cause]
    early_ms, late_ms = begun_ms + min(world.skews_ms), record.created_ms + max(world.skews_ms)
    days = {day_at(past.settings.zones, at_ms) for at_ms in (early_ms, late_ms)}
    if not min(days) <= item["day"] <= max(days):
        raise Violated(f"that is no day of {early_ms} to {late_ms}: {record}")


def answers_are_right(world: World) -> None:
    """Whoever asked was told a label that was right by something that could be read then."""
    past = past_of(world)
    for asked in diary_of(world).asked:
        if asked.told is None or asked.request.ended_ms is None:
            continue
        span = Span(asked.request.started_ms - STALE_MOST_MS, asked.request.ended_ms)
        day = _day_of(world, past, asked, span)
        grounds = list(past.grounds(asked.whose, span))
        stands = past.stands(asked.whose, day, span)
        kept = _kept(world, asked, stands)
        if not any(_is_right_answer(past, asked, day, span, ground, stands, kept) for ground in grounds):
            raise Violated(f"{asked.request} was told {asked.told}, and by {grounds} and {stands} that is wrong")
        _check_override(world, asked, grounds, stands)
        for one in asked.told.labels if isinstance(asked.told, Selected) else ():
            if one.spend.spent_usd_micros not in past.spent(asked.whose, day, one.spend.label, span):
                raise Violated(f"{asked.request} was told {one}, which nobody ever wrote")


def _day_of(world: World, past: Past, asked: Asked, span: Span) -> str:
    """The day that it was answered for, which must be that of some moment of the request, by the zone known then."""
    told, moments_ms = asked.told, (span.first_ms + min(world.skews_ms), span.last_ms + max(world.skews_ms))
    assert told is not None
    ends_ms = told.resets_at_ms if isinstance(told, AllQuotasExceeded) else told.day.ends_ms
    for zones, at_ms in product(past.zones(span), moments_ms):
        if end_ms(zones, at_ms) == ends_ms:
            return day_at(zones, at_ms)
    raise Violated(f"{asked.request} was told of a day that ends at {ends_ms}")


def _kept(world: World, asked: Asked, stands: Sequence[Any]) -> set[str | None]:
    """The labels on which selection stood; and the one that is said not to be kept, where a call failed."""
    kept = {stand.get("active_label") for stand in stands}
    told, failed = asked.told, asked.request.number in world.unavailable | world.conflicted
    if failed and isinstance(told, Selected) and told.sticky.active_label != told.label:
        kept.add(told.label)
    return kept


def _is_right_answer(
    past: Past,
    asked: Asked,
    day: str,
    span: Span,
    ground: Ground,
    stands: Sequence[Any],
    kept: Container[str | None],
) -> bool:
    """By one of the stands."""
    if isinstance(asked.told, Selected) and asked.told.reason is Reason.OVERRIDE:
        began_ms = asked.request.started_ms + min(asked.request.skews_ms)
        holding = {label for label, until_ms in map(_override, stands) if until_ms > began_ms}
        return asked.told.label in holding.intersection(ground.labels)
    return any(_is_right_from(past, asked, day, span, ground, stand, kept) for stand in stands)


def _is_right_from(
    past: Past, asked: Asked, day: str, span: Span, ground: Ground, stand: Any, kept: Container[str | None]
) -> bool:
    told, whose = asked.told, asked.whose
    start = _start(ground, stand)

    def spent(label: str) -> bool:
        return max(past.spent(whose, day, label, span)) >= ground.quotas[label]

    if isinstance(told, AllQuotasExceeded):
        return all(spent(label) for label in ground.labels[start:])
    assert isinstance(told, Selected)
    if told.label not in ground.labels[start:]:
        return False
    place = ground.labels.index(told.label)
    moved = place > start
    if moved and ground.is_sticky and told.label not in kept:
        # Whoever moves it, or finds it moved, is told what is kept.
        return False
    reason = Reason.QUOTA_EXCEEDED if moved else Reason.STICKY if start else Reason.NORMAL
    left = min(past.spent(whose, day, told.label, span)) < ground.quotas[told.label]
    return told.reason is reason and left and all(spent(label) for label in ground.labels[start:place])


def _start(ground: Ground, stand: Any) -> int:
    kept = stand.get("active_label")
    return ground.labels.index(kept) if ground.is_sticky and kept in ground.labels else 0


def _check_override(world: World, asked: Asked, grounds: Sequence[Ground], stands: Sequence[Any]) -> None:
    """One that holds all the while, and whose label may be used all the while, is what everybody is told."""
    overrides = {_override(stand) for stand in stands}
    (label, until_ms), *others = overrides
    if others or label is None or not all(label in ground.labels for ground in grounds):
        return
    if until_ms <= (asked.request.ended_ms or 0) + max(world.skews_ms):
        return
    if not isinstance(asked.told, Selected) or (asked.told.label, asked.told.reason) != (label, Reason.OVERRIDE):
        raise Violated(f"{asked.request} was told {asked.told}, and {label} was set")


def everybody_agrees_in_peace(world: World) -> None:
    """Once nothing changes any more: exactly what the settings, the totals and the stand say, and again the same.

    The next day begins with the first label. Changes the world, and goes behind whatever looks at its changes.
    """
    whose = {asked.whose for asked in diary_of(world).asked}

    def ask(host: Host) -> None:
        selection = money_of(world).at(host, world.scheduler.clock_ms).money.selection
        zones, scheduler = Past(world).settings.zones, world.scheduler
        scheduler.pause(max(ANSWERED) + 1)
        if end_ms(zones, scheduler.now_ms) - scheduler.now_ms < LONG_MS:
            scheduler.pause(LONG_MS)
        for one in sorted(whose):
            _check_told(world, selection, one)
        scheduler.pause(end_ms(zones, scheduler.now_ms) - scheduler.now_ms)
        for one in sorted(whose):
            _check_told(world, selection, one)

    world.afterwards(ask)


def _check_told(world: World, selection: Selection, whose: str) -> None:
    """Twice: the first may move it."""
    past, now_ms = Past(world), world.scheduler.now_ms
    span = Span(now_ms, now_ms)
    day = day_at(past.settings.zones, now_ms)
    (ground,), (stand,) = past.grounds(whose, span), past.stands(whose, day, span)
    label, until_ms = _override(stand)
    ahead = ground.labels[_start(ground, stand) :]
    left = [one for one in ahead if past.spent(whose, day, one, span)[0] < ground.quotas[one]]
    right = label if label in ground.labels and until_ms > now_ms else left[0] if left else None
    told = [_told(selection, world, whose) for _ in range(2)]
    if told != [right, right]:
        raise Violated(f"{whose} was told {told}, right is {right} by {ground}, {stand}")


def _told(selection: Selection, world: World, entity: str) -> str | None:
    try:
        told: str = selection.select_for(world.namespace, entity).label
    except AllQuotasExceeded:
        return None
    return told


def _override(item: Any) -> tuple[str | None, float]:
    """And until when it holds on the day of the item."""
    whole_day = item.get("override_whole_day", False)
    return item.get("override_label"), math.inf if whole_day else item.get("override_until_ms", 0)


def _begun_ms(world: World) -> dict[object, int]:
    """When whoever wrote something began to."""
    return {**{request.number: request.started_ms for request in world.history}, **stream_of(world).runs}


def _of_kind(world: World, kind: str) -> Iterator[StreamRecord]:
    for record in world.table.stream:
        item = record.new or record.old
        if item is not None and item.get("kind") == kind:
            yield record
