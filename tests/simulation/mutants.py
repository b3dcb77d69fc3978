"""Closed holes, opened again: each must be caught, else the simulation proves nothing about it.

A mutant patches the product for one run only. A new one names the hole, how to open it and the scenario that shows it.
"""

import sys
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

from sluice.core import bucket
from sluice.core.shards import shard_parameters
from sluice.repository import keys, legacy_moves, resharding, writes
from sluice.repository.idempotency import put_answer
from sluice.repository.leases import put_lease
from sluice.repository.retries import Retries
from sluice.services import claims, configuration, entities, idempotency, leases, purge, sharding
from sluice.services.taking import Taker
from tests.simulation.archive_mutants import ARCHIVES
from tests.simulation.bound_mutants import BEYOND, BOUNDS
from tests.simulation.budget_mutants import BUDGET_HOLES
from tests.simulation.hole import Mutant
from tests.simulation.identity_mutants import IDENTITIES
from tests.simulation.money_mutants import MONEY
from tests.simulation.paths import Path, path_of_update
from tests.simulation.rule_mutants import RULES
from tests.simulation.scenario import SimulationFailure, Violated, run_seed
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.store import SimulatedStore
from tests.simulation.stream_mutants import STREAMS

_run = Retries.run
_create = writes.create
_debit = writes.debit
_need_milli = bucket.need_milli
_put_lease = put_lease
_move_balance = writes._move_balance
_update = SimulatedStore.update
_put_answer = put_answer

SHOWN: Final = 90


def _repeats_lost_answers(self: Retries, send: Any, *, repeatable: bool, writes: bool) -> Any:
    return _run(self, send, repeatable=True, writes=writes)


def _creates_over_others(*arguments: Any) -> Any:
    request = _create(*arguments)
    del request["ConditionExpression"]
    return request


def _asks_for_half(limit: bucket.Parameters, amount_milli: int, now_ms: int) -> int:
    return _need_milli(limit, amount_milli // 2, now_ms)


def _cuts_what_is_not_full(*arguments: Any, **named: Any) -> Any:
    request: Any = _debit(*arguments, **named)
    # From full, whatever the balance is.
    request["ConditionExpression"] = request["ConditionExpression"].replace("_tk > :top_", "_tk <> :top_")
    return request


def _gives_the_child_all(update: Any, name: str, limit: Any, kept: Any, given: Any, now_ms: int) -> int:
    update.conditions.append(f"attribute_exists(b_{name}_tk)")
    return bucket.top_milli(given, now_ms)


def _fills_at_a_rebase(update: Any, name: str, old: Any, new: bucket.Parameters, now_ms: int) -> None:
    update.sets.append(f"b_{name}_tk = :tk_{name}")
    update.values[f":tk_{name}"] = bucket.top_milli(new, now_ms)


def _writes_over_the_lease(*arguments: Any) -> Any:
    request: Any = _put_lease(*arguments)
    return {"Item": request["Item"]}


def _checks_nobody_above(namespace: str, entity: Any) -> Any:
    key = dict(keys.entity(namespace, entity.entity).attributes)
    return {"ConditionCheck": {"Key": key, "ConditionExpression": "attribute_exists(PK)"}}


def _has_no_floor(*arguments: Any, **named: Any) -> Any:
    request: Any = _debit(*arguments, **named)
    values = request["ExpressionAttributeValues"]
    values |= {name: -BEYOND for name in values if name.startswith(":need_")}
    return request


def _moves_balances_unasked(update: Any, name: str, *arguments: Any) -> None:
    _move_balance(update, name, *arguments)
    above = f"b_{name}_tk > :edge_{name}" in update.conditions
    update.values[f":edge_{name}"] = -BEYOND if above else BEYOND


def _rounds_up(limit: bucket.Parameters, now_ms: int) -> int:
    return bucket.ceil_div(now_ms * limit.refill_amount_milli, limit.refill_period_ms)


def _knows_no_count(fingerprint: str, _shard_count: int) -> str:
    return f"{fingerprint}:1"


def _forgets_the_count() -> AbstractContextManager[object]:
    stack = ExitStack()
    for module in (claims, resharding):
        stack.enter_context(patch.object(module, "limits_hash", _knows_no_count))
    return stack


def _asks_only_for_the_incarnation(update: Any, image: Any) -> None:
    update.conditions.append("gen = :gen")
    update.values[":gen"] = image.generation


def _repeats_credits(self: SimulatedStore, request: Any, *, repeatable: bool) -> Any:
    return _update(self, request, repeatable=repeatable or path_of_update(request) is Path.GIVE_BACK)


def _records_over_the_answer(*arguments: Any) -> Any:
    write: Any = _put_answer(*arguments)
    return {"Put": {"Item": write["Put"]["Item"]}}


def _moves_full(_name: str, newest: Any, shards: Any, shard: int, now_ms: int) -> int:
    return bucket.top_milli(shard_parameters(newest.parameters, shard, shards.count), now_ms)


MUTANTS: Final = (
    Mutant("a lost debit is sent again", "one-bucket", lambda: patch.object(Retries, "run", _repeats_lost_answers)),
    Mutant("a create overwrites", "one-bucket", lambda: patch.object(writes, "create", _creates_over_others)),
    Mutant("half the need is enough", "one-bucket", lambda: patch.object(bucket, "need_milli", _asks_for_half)),
    Mutant("an overflow is spent", "expiry", lambda: patch.object(bucket, "slack_milli", lambda _limit: 10**18)),
    Mutant("a rest is cut", "one-bucket", lambda: patch.object(writes, "debit", _cuts_what_is_not_full)),
    Mutant("a split mints", "one-bucket", lambda: patch.object(resharding, "_halve", _gives_the_child_all)),
    Mutant("a rebase fills", "changed-limits", lambda: patch.object(writes, "_move_balance", _fills_at_a_rebase)),
    Mutant("limits live for ten minutes", "changed-limits", lambda: patch.object(configuration, "CACHE_MS", 600_000)),
    Mutant("nothing is given back", "chains", lambda: patch.object(Taker, "give_back", lambda _self, _taken: None)),
    Mutant("a merge fills", "shards", lambda: patch.object(sharding, "_is_full", lambda _image, _now_ms: True)),
    Mutant("a lease closes twice", "leases", lambda: patch.object(leases, "put_lease", _writes_over_the_lease)),
    Mutant(
        "a family goes in circles", "families", lambda: patch.object(entities, "entity_unchanged", _checks_nobody_above)
    ),
    Mutant("a debit has no floor", "one-bucket", lambda: patch.object(writes, "debit", _has_no_floor)),
    Mutant("refill is rounded up", "one-bucket", lambda: patch.object(bucket, "refill_milli", _rounds_up)),
    Mutant(
        "a rebase has no bound",
        "changed-limits",
        lambda: patch.object(writes, "_move_balance", _moves_balances_unasked),
    ),
    Mutant("a hash without the count", "shards", _forgets_the_count),
    Mutant(
        "a merge overlooks debits",
        "merges",
        lambda: patch.object(resharding, "_as_seen", _asks_only_for_the_incarnation),
    ),
    Mutant("a lost credit is sent again", "chains", lambda: patch.object(SimulatedStore, "update", _repeats_credits)),
    Mutant(
        "a settle forgets adjustments",
        "leases",
        lambda: patch.object(leases, "amounts_of", lambda lease, _adjusted: dict(lease.consumed)),
    ),
    Mutant(
        "a key takes twice", "idempotency", lambda: patch.object(idempotency, "put_answer", _records_over_the_answer)
    ),
    Mutant("a namespace ends nowhere", "namespaces", lambda: patch.object(keys, "namespace_prefix", keys.encode)),
    Mutant(
        "a purge waits for nobody", "namespaces", lambda: patch.object(purge, "UNNOTICED_MS", 0), 2_000, first=1_100
    ),
    Mutant("a move fills", "migration", lambda: patch.object(legacy_moves, "_balance_milli", _moves_full)),
    Mutant(
        "a move forgets counts", "migration", lambda: patch.object(legacy_moves, "_consumed_milli", lambda _parts: {})
    ),
    Mutant("a bucket expires at once", "expiry", lambda: patch.object(writes, "least_expires_at_s", lambda _f, _n: 0)),
    *BOUNDS,
    *RULES,
    *IDENTITIES,
    *STREAMS,
    *ARCHIVES,
    *MONEY,
    *BUDGET_HOLES,
)


@dataclass(frozen=True)
class Caught:
    seed: int
    by: str


def caught(mutant: Mutant) -> Caught | None:
    """The first seed that shows the hole, and what it violates."""
    with mutant.opened():
        for seed in range(mutant.first, mutant.first + mutant.seeds):
            try:
                run_seed(SCENARIOS[mutant.scenario], seed)
            except SimulationFailure as failure:
                if not isinstance(failure.__cause__, (Violated, *mutant.also)):
                    raise
                return Caught(seed, str(failure).splitlines()[0])
    return None


def main() -> int:
    missed = 0
    for mutant in MUTANTS:
        found = caught(mutant)
        missed += found is None
        seed = "not caught" if found is None else f"seed {found.seed}"
        by = "" if found is None else found.by[:SHOWN]
        sys.stdout.write(f"{mutant.name:<32} {mutant.scenario:<15} {seed:<10} {by}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{len(MUTANTS)} mutants, {missed} not caught\n")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
