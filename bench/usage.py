"""What it costs to report finished calls: one, one again, one that closes a lease, and a hundred together."""

import secrets
from collections.abc import Callable
from typing import Final

from bench.capacity import Consumption
from sluice.core.audit import BY_SYSTEM
from sluice.core.labels import LabelDefinition
from sluice.core.lease import Lease
from sluice.core.metering import BATCH_MAX, CallStatus
from sluice.core.orgs import EntityRole, OrgSettings, QuotaScope
from sluice.core.pricing import TokenKind
from sluice.core.reports import UsageReport
from sluice.core.timelines import always
from sluice.repository.entities import entity_put
from sluice.repository.items import Entity
from sluice.repository.labels import encode_label
from sluice.repository.orgs import Org, encode_org
from sluice.services.judging import Reporter
from sluice.services.metering import Counted
from sluice.shell import Services, clock_ms

ORG: Final = "acme-corporation"
APP: Final = "support-assistant"
USER: Final = "user-" + "u" * 31
LABEL: Final = "premium"
# As long as most.
MODEL: Final = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
_MADE_AT_MS: Final = 1_700_000_000_000


class UsageCosts:
    """`one`: measures an operation."""

    def __init__(self, services: Services, one: Callable[[Callable[[], object]], Consumption]) -> None:
        self._services = services
        self._one = one
        # One time for all, so that no local day ends meanwhile.
        self._at_ms = clock_ms()

    def measure(self) -> dict[str, Consumption]:
        by_app, by_org = (
            put_org(self._services, namespace, scope)
            for namespace, scope in (("metering", QuotaScope.APP), ("metering-by-org", QuotaScope.ORG))
        )
        for reporter in (by_app, by_org):
            # From here on all settings and prices are known.
            self._submit(reporter, self._report())
        repeated = self._report()
        figures = {
            "usage event": self._one(lambda: self._submit(by_app, repeated)),
            "usage event, quota scope ORG": self._one(lambda: self._submit(by_org, self._report())),
            "usage event repeated": self._one(lambda: self._submit(by_app, repeated, duplicate=True)),
        }
        lease = Lease(secrets.token_hex(16), by_app.namespace, USER, "gpt-4", {"rpm": 1}, (), self._at_ms + 600_000)
        figures["usage event that closes a lease"] = self._one(lambda: self._submit(by_app, self._report(lease=lease)))
        newcomer = self._report(entity=f"new-{secrets.token_hex(17)}")
        figures["usage event of an unknown entity"] = self._one(lambda: self._submit(by_app, newcomer))
        figures["batch of 100 usage events"] = self._one(lambda: self._submit_batch(by_app))
        figures["batch of 100 usage events, quota scope ORG"] = self._one(lambda: self._submit_batch(by_org))
        return figures

    def _report(self, entity: str = USER, lease: Lease | None = None) -> UsageReport:
        return UsageReport(
            request_id=secrets.token_hex(16),
            status=CallStatus.OK,
            tokens={TokenKind.INPUT: 1_500, TokenKind.OUTPUT: 800},
            label=LABEL,
            entity=entity,
            occurred_at_ms=self._at_ms,
            tags={"team": "billing", "feature": "summary"},
            lease=lease,
        )

    def _submit(self, reporter: Reporter, report: UsageReport, *, duplicate: bool = False) -> None:
        counted = self._services.money.metering.submit(reporter, report)
        if counted.duplicate != duplicate:
            raise AssertionError(f"duplicate should be {duplicate}")

    def _submit_batch(self, reporter: Reporter) -> None:
        reports = [self._report() for _ in range(BATCH_MAX)]
        answers = self._services.money.metering.submit_batch(reporter, reports)
        if not all(isinstance(answer, Counted) and not answer.duplicate for answer in answers):
            raise AssertionError("every event of the batch should have been counted")


def put_org(services: Services, namespace: str, scope: QuotaScope) -> Reporter:
    """An org with an app, a user below it, and a label with its price."""
    settings = OrgSettings(quota_scopes=always(scope), quotas_usd_micros={LABEL: 10**9})
    org = Org(ORG, namespace, "client", settings, 1, _MADE_AT_MS, _MADE_AT_MS)
    label = LabelDefinition(LABEL, MODEL, None, None, None, 3_000_000, 15_000_000, 1, _MADE_AT_MS, _MADE_AT_MS)
    entities = [
        _entity(ORG, None, EntityRole.ORG),
        _entity(APP, ORG, EntityRole.APP),
        _entity(USER, APP, EntityRole.OTHER),
    ]
    puts = [entity_put(namespace, entity, None)["Put"]["Item"] for entity in entities]
    for item in (encode_org(org), encode_label(namespace, label), *puts):
        services.store.put({"Item": item}, repeatable=True)
    return Reporter(namespace, APP, APP, BY_SYSTEM, registers=True)


def _entity(entity: str, parent: str | None, role: EntityRole) -> Entity:
    return Entity(
        entity=entity,
        name=None,
        parent=parent,
        cascade=True,
        metadata={},
        version=1,
        created_at_ms=_MADE_AT_MS,
        updated_at_ms=_MADE_AT_MS,
        role=role,
    )
