"""What marks and rollups cost, on one label and day of an org whose quotas are of the whole org."""

import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from bench.capacity import Consumption
from sluice.core.metering import Counters
from sluice.core.orgs import OrgSettings
from sluice.core.pricing import TokenKind
from sluice.repository.counters import CounterName, add_to_shard
from sluice.repository.namespaces import Namespace, NamespaceState, create_writes
from sluice.repository.orgs import Org, org_put
from sluice.repository.totals import MINUTE_MS, decode_total, mark_due, remove_mark, total_key
from sluice.repository.wire import item_to_wire
from sluice.shell import Services, clock_ms

NAMESPACE: Final = "totals"
LABEL: Final = "premium"


class TotalCosts:
    """`one`: measures an operation. `process`: one more, as far as its caches go."""

    def __init__(
        self,
        services: Services,
        process: Callable[[], Services],
        one: Callable[[Callable[[], object]], Consumption],
    ) -> None:
        self._store = services.store
        self._process = process
        self._one = one

    def measure(self) -> dict[str, Consumption]:
        org, now_ms = self._put_org(), clock_ms()
        day = f"{datetime.fromtimestamp(now_ms // 1000, UTC):%Y%m%d}"
        name, another = (CounterName(NAMESPACE, org, label, day) for label in (LABEL, "another"))
        # Another total first, so that each process knows the namespace.
        marking, later = (self._process().money.marking for _ in range(2))
        for one in (marking, later):
            one.mark([self._counted(another)])
        records = [self._counted(name, shard) for shard in range(2)]
        first = self._one(lambda: marking.mark(records[:1]))
        self._unmark(name)
        mark = self._one(lambda: later.mark(records[1:]))
        rollup = self._process().money.rollup
        for total in (another, name):
            # Else the run for one would sum up the other as well.
            self._unmark(total)
        for total in (another, name):
            self._store.update(mark_due(total, now_ms // MINUTE_MS - 3, now_ms), repeatable=True)
            rolled_up = self._one(lambda: rollup.run(_never))
        quiet = self._one(lambda: rollup.run(_never))
        # There is a mark of the minute before, and a run leaves the one of this minute.
        self._counted(name)
        minute = clock_ms() // MINUTE_MS
        self._store.update(mark_due(name, minute - 1, now_ms), repeatable=True)
        raised = self._one(lambda: self._store.update(mark_due(name, minute, now_ms), repeatable=True))
        stays = self._one(lambda: rollup.run(_never))
        return {
            "first mark of a day": first,
            "mark of a total": mark,
            "mark of a total in steady use": raised,
            "rollup of one label": rolled_up,
            "rollup of one label in steady use": stays,
            "rollup with nothing due": quiet,
        }

    def _put_org(self) -> str:
        org, now_ms = "org-" + secrets.token_hex(18), clock_ms()
        made = Org(org, NAMESPACE, "client", OrgSettings(quotas_usd_micros={LABEL: 10**9}), 1, now_ms, now_ms)
        tenant = create_writes(Namespace(org, NAMESPACE, NamespaceState.ACTIVE, None, now_ms, now_ms))
        self._store.transact([*tenant, org_put(made, None)], secrets.token_hex(16))
        return org

    def _counted(self, name: CounterName, shard: int = 0) -> dict[str, Any]:
        """One more call in a shard, and what the stream tells of it."""
        now_ms = clock_ms()
        added = add_to_shard(name, shard, now_ms, Counters(7, {TokenKind.INPUT: 1}, requests=1), now_ms)
        item = self._store.update(added, repeatable=False).item
        if item is None:
            raise AssertionError("the shard should be there")
        return {"dynamodb": {"NewImage": item_to_wire(item)}}

    def _unmark(self, name: CounterName) -> None:
        item = self._store.get(total_key(name), consistent=True)
        due_minute = None if item is None else decode_total(item).due_minute
        if due_minute is None:
            raise AssertionError("the total should be marked")
        self._store.update(remove_mark(name, due_minute), repeatable=True)


def _never() -> bool:
    """There is time for all of it."""
    return False
