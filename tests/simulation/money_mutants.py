"""Holes in counting and choosing, opened again."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, cast
from unittest.mock import patch

from sluice.core.selection import choose
from sluice.repository.events import USAGE_EVENT, event_absent, put_event
from sluice.repository.requests import TransactWrite
from sluice.repository.retries import Retries, Transaction
from sluice.repository.sticky import Override, move, override_set
from sluice.repository.store import BATCH_KEYS_MAX, Store
from sluice.repository.totals import MINUTE_MS, DailyTotal, decode_total, remove_mark, total_key, write_total
from sluice.services import grounds, judging, overrides, rollup, selection, summing
from sluice.services.catalog import Catalog
from sluice.services.grounds import Grounds
from sluice.services.judging import Judge
from sluice.services.leases import Leases
from sluice.services.marking import Marking
from sluice.services.rollup import Rollup
from sluice.services.settings import SettingsCache
from tests.simulation.hole import Mutant
from tests.simulation.store import SimulatedStore

_absent = event_absent
_batch_get = SimulatedStore.batch_get
_choose = choose
_closing = Leases.closing
_due_marks = Rollup._due
_mark = Marking._mark
_move = move
_open = Judge.open
_org_now = SettingsCache.org_now
_override_set = override_set
_put_event = put_event
_remove_mark = remove_mark
_roll_up = Rollup._roll_up
_run_transaction = Retries.run_transaction
_write_total = write_total


def _puts_over_events(*arguments: Any) -> Any:
    """A set of ids beside the counters keeps no number from being added."""
    return {"Item": _put_event(*arguments)["Item"]}


def _writes_over_totals(*arguments: Any) -> Any:
    request: Any = _write_total(*arguments)
    request["ConditionExpression"] = "attribute_not_exists(nothing)"
    del request["ExpressionAttributeNames"]["#rev"], request["ExpressionAttributeValues"][":rev"]
    return request


def _removes_any_mark(*arguments: Any) -> Any:
    request: Any = _remove_mark(*arguments)
    request["ConditionExpression"] = "attribute_exists(PK)"
    del request["ExpressionAttributeValues"]
    return request


def _asks_once(self: SimulatedStore, keys: Any, *, consistent: bool = False) -> Any:
    """Counters that stay unprocessed are taken for absent ones."""
    if not keys or not keys[0].pk.partition("/")[2].startswith("COST#"):
        return _batch_get(self, keys, consistent=consistent)
    return self._batch(list(keys[:BATCH_KEYS_MAX]), consistent=consistent)[0]


def _marks_once(self: Marking, name: Any) -> None:
    if name not in self._marked:
        _mark(self, name)


def _knows_the_org(self: SettingsCache, namespace: str) -> Any:
    """As it was when this process first asked, however many shards were added since."""
    known = self.__dict__.setdefault("known", {})
    if namespace not in known:
        known[namespace] = _org_now(self, namespace)
    return known[namespace]


class _ReadLater(NamedTuple):
    """What is due, with the mark that is there when it is asked for."""

    total: DailyTotal
    store: Store
    is_over: bool

    @property
    def minute(self) -> int:
        item = self.store.get(total_key(self.total.name), consistent=True)
        due = None if item is None else decode_total(item).due_minute
        return -1 if due is None else due


def _reads_the_mark_last(self: Rollup, one: Any, *arguments: Any) -> None:
    """The shards first, then the mark that is removed."""
    _roll_up(self, cast("Any", _ReadLater(one.total, self._store, one.is_over)), *arguments)


def _leaves_the_present_minute(self: Rollup, *arguments: Any) -> Any:
    """What is used all the time always has a mark of it."""
    return [one for one in _due_marks(self, *arguments) if one.is_over]


def _goes_by_our_clock(self: Judge, reporter: Any, report: Any, now_ms: int) -> Any:
    opened = _open(self, reporter, report, now_ms)
    ours = _open(self, reporter, replace(report, occurred_at_ms=None), now_ms)
    return replace(opened, day=ours.day, key=ours.key)


def _rebuilds_without_conditions(self: Retries, send: Any, transaction: Transaction, rebuild: Any = None) -> Any:
    def rebuilt() -> Transaction:
        again = rebuild()
        return Transaction([_unconditional(write) for write in again.writes], again.token)

    return _run_transaction(self, send, transaction, None if rebuild is None else rebuilt)


def _unconditional(write: TransactWrite) -> TransactWrite:
    if "Put" in write and write["Put"]["Item"].get("kind") == USAGE_EVENT:
        return {"Put": {"Item": write["Put"]["Item"]}}
    return write


def _asks_for_nothing_else(*arguments: Any) -> Any:
    request: Any = _absent(*arguments)
    return {"Key": request["Key"], "ConditionExpression": "attribute_not_exists(nothing)"}


def _forgets_the_org(org: Any, app: str | None, _day_starts_ms: int) -> Sequence[str]:
    return (org.org if app is None else app,)


def _keeps_leases_open(self: Leases, lease: Any, *how: Any) -> Any:
    closing = _closing(self, lease, *how)
    return closing if closing is not None and closing.state.version > 1 else None


def _stays_where_it_stands(usable: Any, stand: Any, *, sticky_enabled: bool) -> Any:
    """Whatever was spent of it."""
    kept = [replace(one, spent_usd_micros=-1) if one.label == stand.label else one for one in usable]
    return _choose(kept, stand, sticky_enabled=sticky_enabled)


def _moves_unasked(*arguments: Any) -> Any:
    request: Any = _move(*arguments)
    request["ConditionExpression"] = "attribute_not_exists(nothing)"
    del request["ExpressionAttributeNames"]["#active"]
    request["ExpressionAttributeValues"].pop(":seen", None)
    return request


def _takes_what_it_has(_self: Grounds, ground: Any, _stands_on: str | None = None) -> Any:
    return ground


def _has_just_read(_self: Catalog, _namespace: str) -> bool:
    return False


def _writes_the_whole_item(name: Any, override: Any, seen: Any, now_ms: int) -> TransactWrite:
    """As it was when nobody had moved it."""
    write: Any = _override_set(name, override, seen, now_ms)["Update"]
    values, names = write["ExpressionAttributeValues"], write["ExpressionAttributeNames"]
    item = {names[f"#{alias[1:]}"]: value for alias, value in values.items() if f"#{alias[1:]}" in names}
    item = {**item, "created_at": now_ms, **write["Key"]}
    if seen is None:
        names = {"#o0": names["#o0"]}
        return {
            "Put": {
                "Item": item,
                "ConditionExpression": write["ConditionExpression"],
                "ExpressionAttributeNames": names,
            }
        }
    return {"Put": {"Item": item}}


def _lasts_for_good(self: Override, _now_ms: int) -> bool:
    return bool(self.label)


def _knows_what_is_planned(timeline: Any, _at_ms: int) -> Any:
    return timeline[-1].value


MONEY: Final = (
    Mutant(
        "a set of ids beside the counters", "metering", lambda: patch.object(judging, "put_event", _puts_over_events)
    ),
    Mutant(
        "a rollup without guard", "metering", lambda: patch.object(summing, "write_total", _writes_over_totals), 500
    ),
    Mutant(
        "a mark is cleared blindly",
        "metering",
        lambda: patch.object(rollup, "remove_mark", _removes_any_mark),
        2_000,
        first=140,
    ),
    Mutant("unprocessed keys are ignored", "metering", lambda: patch.object(SimulatedStore, "batch_get", _asks_once)),
    Mutant("a mark is remembered for good", "metering", lambda: patch.object(Marking, "_mark", _marks_once)),
    Mutant(
        "a rollup knows the shards", "metering", lambda: patch.object(SettingsCache, "org_now", _knows_the_org), 2_000
    ),
    Mutant(
        "the mark is read last",
        "metering",
        lambda: patch.object(Rollup, "_roll_up", _reads_the_mark_last),
        2_000,
        first=110,
    ),
    Mutant(
        "the present minute is left alone",
        "metering",
        lambda: patch.object(Rollup, "_due", _leaves_the_present_minute),
    ),
    Mutant("a mark goes in its minute", "metering", lambda: patch.object(rollup, "SETTLE_MS", -2 * MINUTE_MS)),
    Mutant("a call is of the day it came in", "metering", lambda: patch.object(Judge, "open", _goes_by_our_clock)),
    Mutant(
        "a rebuilt event has no condition",
        "metering",
        lambda: patch.object(Retries, "run_transaction", _rebuilds_without_conditions),
        2_000,
    ),
    Mutant(
        "a call without a time has one day",
        "metering",
        lambda: patch.object(judging, "event_absent", _asks_for_nothing_else),
        2_000,
    ),
    Mutant(
        "the org's quotas count nothing", "metering", lambda: patch.object(judging, "counted_for", _forgets_the_org)
    ),
    Mutant("a report closes no lease", "metering", lambda: patch.object(Leases, "closing", _keeps_leases_open), 500),
    Mutant(
        "a kept label skips its own quota",
        "selection",
        lambda: patch.object(selection, "choose", _stays_where_it_stands),
    ),
    Mutant("a move asks for nothing", "selection", lambda: patch.object(selection, "move", _moves_unasked), 2_000),
    Mutant("a move by old settings", "selection", lambda: patch.object(Grounds, "anew", _takes_what_it_has), 500),
    Mutant(
        "a move by old labels",
        "selection",
        lambda: patch.object(Catalog, "look_again", _has_just_read),
        2_000,
        first=780,
    ),
    Mutant(
        "an override starts the day anew",
        "selection",
        lambda: patch.object(overrides, "override_set", _writes_the_whole_item),
        500,
    ),
    Mutant("an override lasts for good", "selection", lambda: patch.object(Override, "holds", _lasts_for_good), 500),
    Mutant(
        "a planned scope holds at once",
        "selection",
        lambda: patch.object(grounds, "in_force", _knows_what_is_planned),
        500,
    ),
)
