"""Traffic of tenants whose ids were made to be taken for one another."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from sluice.core.audit import Author
from sluice.core.budget import Dimension, Enforcement, OwnBudget, Slot, Span
from sluice.core.errors import WrongCredentials
from sluice.core.identity import Role
from sluice.core.limits import DEFAULT_RESOURCE, SYSTEM, Limit, Scope
from sluice.core.metering import CallStatus
from sluice.core.orgs import AppChange, EntityRole, OrgSettings
from sluice.core.pricing import TokenKind
from sluice.core.reports import UsageReport
from sluice.repository.clients import Client, StoredSecret, client_put
from sluice.repository.entities import entity_put
from sluice.repository.idempotency import IdempotencyKey
from sluice.repository.items import Entity
from sluice.repository.namespaces import Namespace, NamespaceState, create_writes
from sluice.repository.orgs import Org, org_put
from sluice.services.chains import AcquireRequest
from sluice.services.client_secrets import ClientSecrets
from sluice.services.entities import EntityChange
from sluice.services.judging import Reporter
from sluice.services.labels import LabelFields
from sluice.services.orgs import OrgPath
from sluice.services.overrides import Wanted
from sluice.services.prices import PriceFields, PriceName
from sluice.services.profiles import ProfileOwner
from sluice.services.registration import Registration
from sluice.services.rollup_jobs import ROLLUP_ENTITY
from sluice.shell import Services
from tests.fakes import FakeClock
from tests.hostile.product import PROFILE_ARN
from tests.tenancy import FixedKeys

OPERATOR: Final = Author("operator", "request-7")
LIMITS: Final = {"rpm": Limit(1000, 1000, 1000, 60), "tpm": Limit(1000, 2000, 1000, 60)}
NAMESPACES: Final = (
    *("a", "A", "ab", "a/", "a#0", "a%", "a%2F", "a%23", "a!", "a\x00", "a ", "a/ENTITY#a", "a/BUCKET#a#r#0"),
    *("%61", "-", "0", "é", "e\u0301", "_a", "__", "$SYSTEM", "_default_", "a\n", "\u212a", "K"),
)
ENTITIES: Final = ("a", "a#r", "a/b", "a%23r", "A", "_default_", "$SYSTEM", "r#0", "a!", "0")
RESOURCES: Final = ("r", "r#0", "r!", "_default_", "a")
SECRET: Final = "sk_of_everybody"
# As an org could name them, if there were no pattern.
LABELS: Final = ("a", "a#r", "r#0")
SETTINGS: Final = OrgSettings(model_ordering=LABELS, quotas_usd_micros=dict.fromkeys(LABELS, 10**9))
BUDGET: Final = OwnBudget({Slot(Span.DAY, Dimension.EXECUTIONS): 10**6}, Enforcement.HARD)
PRICE: Final = {TokenKind.INPUT: 3_000_000, TokenKind.OUTPUT: 15_000_000}


def register(services: Services, namespace: str, clock: FakeClock) -> None:
    """An org with a client whose id is as hostile as that of its namespace."""
    now_ms, name = clock.now_ms, org_of(namespace).org
    made = Namespace(name, namespace, NamespaceState.ACTIVE, None, now_ms, now_ms)
    hashed = ClientSecrets(FixedKeys(), lambda _below: 0).hash(SECRET)
    secret = StoredSecret(1, hashed, now_ms, None)
    client = Client(namespace, namespace, name, Role.ORG, 1, (secret,), 1, now_ms, now_ms)
    root = Entity(name, None, None, True, {}, 1, now_ms, now_ms, EntityRole.ORG)
    writes = [*create_writes(made), org_put(Org(name, namespace, namespace, SETTINGS, 1, now_ms, now_ms), None)]
    writes += [entity_put(namespace, root, None), client_put(client)]
    services.store.transact(writes, services.jobs.start_writes(namespace, "count", {}).job.job_id)


def org_of(namespace: str) -> OrgPath:
    return OrgPath(f"name of {namespace}")


def app_of(namespace: str) -> str:
    return f"app of {namespace}"


def log_in(services: Services, namespace: str) -> None:
    """An app, tokens, and all marks that end them."""
    services.apps.put(org_of(namespace), app_of(namespace), AppChange(name=namespace), author=OPERATOR)
    services.apps.rotate(org_of(namespace), app_of(namespace), 0, author=OPERATOR)
    issued = services.logins.log_in(namespace, SECRET)
    services.logins.refresh(issued.refresh_token)
    with suppress(WrongCredentials):
        services.logins.refresh(issued.refresh_token)


def live(services: Services, namespace: str, entities: Sequence[str], resources: Sequence[str]) -> None:
    """Something of every kind: levels of limits, a chain, buckets, leases in every state, answers, jobs, an app, and
    all that is about money."""
    services.limits.put(namespace, SYSTEM, LIMITS)
    services.entities.put(namespace, "top", EntityChange(name="the top"))
    for resource in resources:
        services.limits.put(namespace, Scope(resource=resource), LIMITS)
        services.limits.put(namespace, Scope("top", resource), LIMITS)
    for entity in entities:
        services.entities.put(namespace, entity, EntityChange(parent="top", metadata={entity or "-": entity}))
        services.limits.put(namespace, Scope(entity, DEFAULT_RESOURCE), LIMITS)
        for resource in resources:
            services.limits.put(namespace, Scope(entity, resource), LIMITS)
            spend(services, namespace, entity, resource)
    services.migrations.start(namespace, OPERATOR, dry_run=True)
    log_in(services, namespace)
    set_prices(services, namespace)
    for entity in entities:
        services.money.budgets.put(namespace, entity, BUDGET, author=OPERATOR)
    for entity in (*entities, org_of(namespace).org, app_of(namespace)):
        for label in LABELS:
            use(services, namespace, entity, label)
    sum_up(services, namespace)


def set_prices(services: Services, namespace: str) -> None:
    """Of labels, of a model, and a profile of the app."""
    for label in LABELS:
        services.money.labels.put(namespace, label, LabelFields(f"model of {label}"), author=OPERATOR)
        name = PriceName(f"model of {label}", None, 20_000)
        services.money.own_prices.put(namespace, name, PriceFields(PRICE), author=OPERATOR)
    owner = ProfileOwner(namespace, app_of(namespace))
    services.money.profiles.put(owner, "of app", PROFILE_ARN, None, author=OPERATOR)


def use(services: Services, namespace: str, entity: str, label: str) -> None:
    reporter = Reporter(namespace, org_of(namespace).org, None, OPERATOR, registers=False)
    tokens = {TokenKind.INPUT: 1_500, TokenKind.OUTPUT: 800}
    report = UsageReport(f"{entity}#{label}", CallStatus.OK, tokens, label, entity=entity, tags={"tag": entity})
    assert not services.money.metering.submit(reporter, report).duplicate


def sum_up(services: Services, namespace: str) -> None:
    """Of the org and its app, which both select then."""
    for entity in (org_of(namespace).org, app_of(namespace)):
        services.money.entity_rollups.start(namespace, entity)
        services.money.overrides.put(namespace, entity, Wanted(LABELS[1], namespace), author=OPERATOR)
    services.jobs.run_open({ROLLUP_ENTITY: services.work[ROLLUP_ENTITY]}, lambda: False)


def spend(services: Services, namespace: str, entity: str, resource: str) -> None:
    registration = Registration(None, OPERATOR)
    request = AcquireRequest(namespace, entity, resource, {"rpm": 1, "tpm": 3}, None, registration)
    lease = services.leases.open(services.acquire.acquire(request), 60_000)
    services.leases.adjust(lease, {"tpm": 2}, f"key {entity}")
    services.leases.settle(lease, {"tpm": 4})
    per_call = AcquireRequest(namespace, entity, resource, {"rpm": 1}, {"rpm": Limit(3, 3, 3, 60)}, registration)
    services.leases.release(services.leases.open(services.acquire.acquire(per_call), 60_000))
    key = IdempotencyKey(namespace, entity, f"{entity}#{resource}", "hash")
    services.idempotent_acquire.acquire(request, key, lambda _admission: f"answer of {namespace}")


def purge(services: Services, namespace: str, clock: FakeClock) -> None:
    """To its end."""
    started = services.orgs.delete(org_of(namespace), author=OPERATOR)
    for _ in range(20):
        services.jobs.run_open({started.kind: services.work[started.kind]}, lambda: False)
        if services.jobs.get("_", started.job_id).is_open:
            clock.advance(60_000)
        else:
            return
    raise AssertionError("the purge does not end")
