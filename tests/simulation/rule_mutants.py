"""Rules that are broken in turn: what the designs before this one did, or what it takes one careless line to do."""

from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from sluice.core import admission, bucket
from sluice.core.errors import SluiceError
from sluice.core.limits import OnUnavailable
from sluice.core.signals import Signal
from sluice.repository import keys, resharding, writes
from sluice.services import denials
from sluice.services.acquire import Acquire
from sluice.services.claims import Terms
from sluice.services.configuration import Configuration
from sluice.services.taking import Taker
from tests.simulation.hole import Mutant
from tests.simulation.table import SimulatedTable

_take = writes._take
_debit = writes.debit
_give_back = writes.give_back
_adjust = writes.adjust
_split = resharding.split
_target = Terms.target
_refuse_if_short = Taker._refuse_if_short
_update = SimulatedTable.update
_admit_at_ms = bucket.admit_at_ms
_counted = Acquire.counted

REFILLED_AT: Final = "rf"


def _says_when_it_was_refilled(
    target: Any, demand: Any, forms: Any, seen: Any, now_ms: int, *generation: Any, **named: Any
) -> Any:
    request: Any = _debit(target, demand, forms, seen, now_ms, *generation, **named)
    section = "SET " if "SET " in request["UpdateExpression"] else None
    said = f"{REFILLED_AT} = :refilled"
    update = request["UpdateExpression"]
    request["UpdateExpression"] = update.replace("SET ", f"SET {said}, ", 1) if section else f"SET {said} {update}"
    request["ExpressionAttributeValues"] |= {":refilled": now_ms}
    return request


def _refills_since_the_last_write(self: SimulatedTable, request: Any) -> Any:
    """The level counts from the time in the item, as `max(0, now - rf)`: the next clock, if slower, starts earlier."""
    values = request.get("ExpressionAttributeValues", {})
    item: Any = self.get(keys.key_of(request["Key"]))
    if ":refilled" not in values or item is None or REFILLED_AT not in item:
        return _update(self, request)
    earlier_ms = max(0, item[REFILLED_AT] - values[":refilled"])
    values = dict(values)
    for name in [name.removeprefix(":less_") for name in values if name.startswith(":less_")]:
        ahead = earlier_ms * item[f"b_{name}_ra"] // item[f"b_{name}_rp"]
        values[f":less_{name}"] += ahead
        values[f":need_{name}"] -= ahead
    changed: Any = {**request, "ExpressionAttributeValues": values}
    return _update(self, changed)


def _stores_the_refill_time() -> AbstractContextManager[object]:
    stack = ExitStack()
    stack.enter_context(patch.object(writes, "debit", _says_when_it_was_refilled))
    stack.enter_context(patch.object(SimulatedTable, "update", _refills_since_the_last_write))
    return stack


def _rounds_what_it_takes(update: Any, name: str, *arguments: Any, **named: Any) -> None:
    """As where each write rounds what was refilled since the one before."""
    _take(update, name, *arguments, **named)
    if f":less_{name}" in update.values:
        update.values[f":less_{name}"] -= 1


def _is_full_where_both_fit(limit: bucket.Parameters, balance_milli: int, now_ms: int) -> bool:
    return balance_milli > bucket.top_milli(limit, now_ms)


def _judges_later(self: Taker, terms: Any, answer: Any, now_ms: int) -> None:
    _refuse_if_short(self, terms, replace(answer, written_ms=now_ms), now_ms)


def _goes_by_the_cache(self: Configuration, namespace: str, entity: str, resource: str) -> Any:
    return self.resolve(namespace, entity, resource, None).resolved.limits


def _splits_and_lets_expire(image: Any, generation: int, now_ms: int) -> Any:
    donor, child = _split(image, generation, now_ms)
    update: Any = donor["Update"]
    names = update["ExpressionAttributeNames"]
    alias = next(alias for alias, name in names.items() if name == "ttl")
    update["UpdateExpression"] = update["UpdateExpression"].replace(f" REMOVE {alias}", "")
    update["ExpressionAttributeNames"] = {one: name for one, name in names.items() if one != alias}
    if image.expires_at_s is not None:
        child["Put"]["Item"]["ttl"] = image.expires_at_s
    return [donor, child]


def _gives_to_whatever_is_there(key: Any, generation: int, amounts_milli: Any) -> Any:
    request: Any = _give_back(key, generation, amounts_milli)
    del request["ConditionExpression"], request["ExpressionAttributeValues"][":gen"]
    return request


def _gives_to_any_incarnation(key: Any, generation: int, amounts_milli: Any) -> Any:
    request: Any = _give_back(key, generation, amounts_milli)
    request["ConditionExpression"] = request["ConditionExpression"].replace("gen = :gen", "attribute_exists(gen)")
    del request["ExpressionAttributeValues"][":gen"]
    return request


def _adjusts_whatever_is_there(image: Any, amounts_milli: Any, now_ms: int) -> Any:
    request: Any = _adjust(image, amounts_milli, now_ms)
    changes = {f":less_{name}": -amount for name, amount in amounts_milli.items()} | {
        f":take_{name}": amount for name, amount in amounts_milli.items()
    }
    adds = ", ".join(f"b_{name}_tk :less_{name}, b_{name}_tc :take_{name}" for name in amounts_milli)
    return {
        "Key": request["Key"],
        "UpdateExpression": f"ADD {adds}, v :one",
        "ExpressionAttributeValues": {**changes, ":one": 1},
    }


def _forgives_debts(update: Any, fill_time_ms: int, _refill_time_ms: int, seen: int | None, now_ms: int) -> None:
    writes._keep_alive(update, fill_time_ms, seen, now_ms)


def _opens_for_anything(self: Acquire, request: Any, take: Any, open_gate: Any) -> Any:
    try:
        return _counted(self, request, take, open_gate)
    except SluiceError:
        if self._configuration.on_unavailable(request.namespace) is not OnUnavailable.ALLOW:
            raise
        self._meter.count(Signal.FAIL_OPEN_ADMISSIONS)
        unchecked = admission.Admission(
            request.namespace, request.entity, request.resource, request.consume, degraded=True
        )
        return open_gate(unchecked)


def _waits_a_moment_less(*arguments: Any) -> int:
    return _admit_at_ms(*arguments) - 1


RULES: Final = (
    Mutant("a refill time is stored", "one-bucket", _stores_the_refill_time),
    Mutant("each write rounds", "one-bucket", lambda: patch.object(writes, "_take", _rounds_what_it_takes)),
    Mutant(
        "from full where both fit",
        "pressure",
        lambda: patch.object(bucket, "is_overflowed", _is_full_where_both_fit),
        2_000,
    ),
    Mutant("judged at a later now", "pressure", lambda: patch.object(Taker, "_refuse_if_short", _judges_later)),
    Mutant(
        "a rebase by the cache", "changed-limits", lambda: patch.object(Configuration, "reread", _goes_by_the_cache)
    ),
    Mutant(
        "shards expire one by one", "expiry", lambda: patch.object(resharding, "split", _splits_and_lets_expire), 2_000
    ),
    Mutant(
        "a credit makes half an item",
        "debts",
        lambda: patch.object(writes, "give_back", _gives_to_whatever_is_there),
        also=(KeyError,),
    ),
    Mutant(
        "an adjustment makes half an item",
        "debts",
        lambda: patch.object(writes, "adjust", _adjusts_whatever_is_there),
        also=(KeyError,),
    ),
    Mutant(
        "a credit to any incarnation", "debts", lambda: patch.object(writes, "give_back", _gives_to_any_incarnation)
    ),
    Mutant(
        "expiry forgives debts", "debts", lambda: patch.object(writes, "_keep_alive_in_debt", _forgives_debts), 2_000
    ),
    Mutant("a refusal stands for a minute", "debts", lambda: patch.object(denials, "DENIAL_MS", 60_000), 2_000),
    Mutant("ids are not escaped", "names", lambda: patch.object(keys, "encode", lambda component: component)),
    Mutant("anything opens the gate", "one-bucket", lambda: patch.object(Acquire, "counted", _opens_for_anything)),
    Mutant(
        "the gate opens unasked",
        "one-bucket",
        lambda: patch.object(Configuration, "on_unavailable", lambda _self, _namespace: OnUnavailable.ALLOW),
    ),
    Mutant("a wait ends too early", "one-bucket", lambda: patch.object(bucket, "admit_at_ms", _waits_a_moment_less)),
)
