"""Closed holes, opened again, each with the small scope whose orders must show it."""

from typing import Any, Final
from unittest.mock import patch

from sluice.core import bucket
from sluice.repository import resharding, writes
from sluice.repository.leases import put_lease
from sluice.repository.limits import limits_put
from sluice.repository.retries import Retries
from sluice.services import leases, limits, sharding
from sluice.services.configuration import Configuration
from tests.simulation.bound_mutants import splits_what_overflowed
from tests.simulation.hole import Mutant

_run = Retries.run
_give_back = writes.give_back
_create = writes.create
_put_lease = put_lease
_limits_put = limits_put
_merge = resharding.merge


def _splits_without_a_bound(update: Any, name: str, limit: Any, kept: Any, given: Any, now_ms: int) -> int:
    half_milli: int = min(limit.balance_milli, bucket.top_milli(limit.parameters, now_ms)) // 2
    update.adds.append(f"b_{name}_tk :give_{name}")
    update.values[f":give_{name}"] = -half_milli
    return half_milli


def _goes_by_the_cache(self: Configuration, namespace: str, entity: str, resource: str) -> Any:
    return self.resolve(namespace, entity, resource, None).resolved.limits


def _gives_to_any_incarnation(key: Any, generation: int, amounts_milli: Any) -> Any:
    request: Any = _give_back(key, generation, amounts_milli)
    request["ConditionExpression"] = request["ConditionExpression"].replace("gen = :gen", "attribute_exists(gen)")
    del request["ExpressionAttributeValues"][":gen"]
    return request


def _creates_over_others(*arguments: Any) -> Any:
    request = _create(*arguments)
    del request["ConditionExpression"]
    return request


def _writes_over_the_lease(*arguments: Any) -> Any:
    request: Any = _put_lease(*arguments)
    return {"Item": request["Item"]}


def _repeats_lost_answers(self: Retries, send: Any, *, repeatable: bool, writes: bool) -> Any:
    return _run(self, send, repeatable=True, writes=writes)


def _puts_over_any_version(*arguments: Any) -> Any:
    request: Any = _limits_put(*arguments)
    return {"Put": {"Item": request["Put"]["Item"]}}


def _merges_whatever_was_spent(*arguments: Any) -> Any:
    found: Any = _merge(*arguments)
    for write in found:
        for request in write.values():
            request["ConditionExpression"] = request["ConditionExpression"].replace("v = :v", "v >= :v")
    return found


SMALL_MUTANTS: Final = (
    Mutant(
        "a split without a bound", "take-split", lambda: patch.object(resharding, "_halve", _splits_without_a_bound)
    ),
    Mutant("a split has no top", "release-split", lambda: patch.object(resharding, "_halve", splits_what_overflowed)),
    Mutant(
        "a rebase by the cache", "rebase-lowered", lambda: patch.object(Configuration, "reread", _goes_by_the_cache)
    ),
    Mutant(
        "a give-back to any incarnation",
        "chain-gives-back-anew",
        lambda: patch.object(writes, "give_back", _gives_to_any_incarnation),
    ),
    Mutant("a create over others", "create-cold", lambda: patch.object(writes, "create", _creates_over_others)),
    Mutant("a lease closes twice", "settle-release", lambda: patch.object(leases, "put_lease", _writes_over_the_lease)),
    Mutant("a lost debit is sent again", "take-lost", lambda: patch.object(Retries, "run", _repeats_lost_answers)),
    Mutant("limits put over a version", "if-match", lambda: patch.object(limits, "limits_put", _puts_over_any_version)),
    Mutant(
        "a merge of what was spent", "take-merge", lambda: patch.object(resharding, "merge", _merges_whatever_was_spent)
    ),
    Mutant("a merge fills", "gather-merge", lambda: patch.object(sharding, "_is_full", lambda _image, _now_ms: True)),
)
