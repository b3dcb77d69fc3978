"""What it costs to acquire under hard budgets, for one to three ledgers, to release that, and to report calls."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from bench.capacity import Consumption
from bench.usage import APP, LABEL, ORG, USER, put_org
from sluice.core.audit import BY_SYSTEM
from sluice.core.budget import SLOTS, Enforcement, OwnBudget
from sluice.core.lease import Lease
from sluice.core.limits import Limit, Scope
from sluice.core.metering import CallStatus
from sluice.core.orgs import QuotaScope
from sluice.core.pricing import TokenKind
from sluice.core.reports import UsageReport
from sluice.core.reserves import ModelReserve
from sluice.services.chains import AcquireRequest
from sluice.services.holding import Wish
from sluice.services.judging import Reporter
from sluice.shell import Services, clock_ms

_RESOURCE: Final = "gpt-4"
_LIMITS: Final = {"rpm": Limit(1000, 1000, 1, 60)}
# Every limit that a ledger may have, so that none is larger.
_BUDGET: Final = OwnBudget(dict.fromkeys(SLOTS, 10**15), Enforcement.HARD, alert_percents=(25, 50, 75, 80, 100))


class HoldCosts:
    """`one`: measures an operation."""

    def __init__(self, services: Services, one: Callable[[Callable[[], object]], Consumption]) -> None:
        self._services = services
        self._one = one
        # One time for all, so that no local day ends meanwhile.
        self._at_ms = clock_ms()

    def measure(self) -> dict[str, Consumption]:
        chains = {"1 ledger": (USER,), "2 ledgers": (USER, APP), "3 ledgers": (USER, APP, ORG)}
        figures: dict[str, Consumption] = {}
        for ledgers, entities in chains.items():
            figures |= self._measure(ledgers, f"holding-{len(entities)}", entities)
        return figures

    def _measure(self, ledgers: str, namespace: str, entities: Sequence[str]) -> dict[str, Consumption]:
        """With one bucket, the entity's own."""
        reporter = put_org(self._services, namespace, QuotaScope.APP)
        self._services.limits.put(namespace, Scope(resource=_RESOURCE), _LIMITS)
        for entity in entities:
            self._services.money.budgets.put(namespace, entity, _BUDGET, author=BY_SYSTEM)
        request = AcquireRequest(namespace, USER, _RESOURCE, {"rpm": 1})
        wish = Wish(request, ModelReserve(1_500, 800, label=LABEL), 300_000)
        without = replace(wish, request=replace(request, consume={}))
        self._take(wish)
        lease, reported, settled = self._take(wish), self._take(wish), self._take(wish)
        # From here on the ledgers and prices are known to the meter of calls too.
        self._report(reporter)
        return {
            f"acquire with a hold, {ledgers}": self._one(lambda: self._take(wish)),
            f"acquire with a hold and no bucket, {ledgers}": self._one(lambda: self._take(without)),
            f"release of a hold, {ledgers}": self._one(lambda: self._services.leases.release(lease)),
            f"usage event, {ledgers}": self._one(lambda: self._report(reporter)),
            f"usage event that settles a hold, {ledgers}": self._one(lambda: self._report(reporter, reported)),
            f"settle with usage and a difference, {ledgers}": self._one(lambda: self._settle(reporter, settled)),
        }

    def _report(self, reporter: Reporter, lease: Lease | None = None) -> None:
        if self._services.money.metering.submit(reporter, self._call(lease)).duplicate:
            raise AssertionError("the call should have been counted")

    def _settle(self, reporter: Reporter, lease: Lease) -> None:
        if self._services.money.settling.settle(lease, {"rpm": 3}, reporter, self._call(lease)).counted.duplicate:
            raise AssertionError("the call should have been counted")

    def _call(self, lease: Lease | None) -> UsageReport:
        return UsageReport(
            request_id=secrets.token_hex(16),
            status=CallStatus.OK,
            tokens={TokenKind.INPUT: 1_500, TokenKind.OUTPUT: 700},
            label=LABEL,
            entity=USER,
            occurred_at_ms=self._at_ms,
            tags={"team": "billing", "feature": "summary"},
            lease=lease,
        )

    def _take(self, wish: Wish) -> Lease:
        admission = self._services.holding.acquire(wish)
        if admission.hold is None:
            raise AssertionError("something should be held")
        return self._services.leases.open(admission, wish.ttl_ms)
