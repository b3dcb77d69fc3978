"""Tenants with something in every corner, so that generated requests meet what exists."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from sluice.core.identity import LEEWAY_MS, REFRESH_MS, Role
from sluice.repository.clients import Client as StoredClient
from sluice.repository.clients import StoredSecret, encode_client
from sluice.services.client_secrets import ClientSecrets
from sluice.services.rollup_jobs import ROLLUP_ENTITY
from tests.hostile.gateway import Answer
from tests.hostile.product import (
    FOREIGN_NAMESPACE,
    NAMESPACE,
    PROFILE_ARN,
    PROFILE_MODEL,
    PROFILE_REGION,
    Product,
)
from tests.tenancy import FixedKeys, tenant_items

SECRETS: Final = ("kept-from-others", "never-to-be-told")
"""A resource and a text of the other tenant that no request names."""

TEAM: Final = "team"
USER: Final = "user"
LONER: Final = "0"
STRANGER: Final = "stranger"
"""Only the other tenant has it."""
RESOURCES: Final = ("gpt-4", "search", "0")
LIMIT_NAMES: Final = ("rpm", "tpm")
LEGACY_NAMESPACES: Final = (NAMESPACE, FOREIGN_NAMESPACE, "", "old", "_")

APP: Final = "app"
APP_USER: Final = "app-user"
OTHER_APP: Final = "app-2"
OTHER_APP_USER: Final = "app-user-2"
"""Two apps of each tenant, with an entity below each."""
OTHER_ORG: Final = "other"
PURGED_ORG: Final = "purged"
"""Orgs for the operator: one to change, and one that is being purged."""
ENTITIES: Final = (TEAM, USER, LONER, STRANGER, "User", "nobody", APP, APP_USER, OTHER_APP_USER, NAMESPACE)
ORGS: Final = (NAMESPACE, FOREIGN_NAMESPACE, OTHER_ORG, PURGED_ORG, "nobody", "new", "tenant-3")
APPS: Final = (APP, OTHER_APP, USER, NAMESPACE, "nobody")
PROFILED: Final = "profiled"
"""A label that stands for an inference profile, and has no definition."""
ORDERING: Final = ("premium", "standard", "economy")
LABELS: Final = (*ORDERING, PROFILED, "unheard-of")
OWN_MODEL: Final = "vendor.own-v1"
MODELS: Final = (OWN_MODEL, "model-of-premium", PROFILE_MODEL, "gpt-4o", "nobody.knows-it", "us.vendor.own-v1")
REGIONS: Final = (PROFILE_REGION, "us-east-1", "xx-nowhere-1")
PROFILE_ARNS: Final = (PROFILE_ARN, PROFILE_ARN + "d", "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.x")
REQUEST_IDS: Final = ("r-1", "r-2", "r-3", "~ !", "R-1")
TIMEZONES: Final = ("UTC", "Europe/Berlin", "America/St_Johns", "Asia/Kolkata", "Pacific/Apia", "utc", "../UTC")

_ROOMY: Final = {
    "rpm": {"capacity": 1000, "refill_period_seconds": 60},
    "tpm": {"capacity": 10**6, "burst": 2 * 10**6, "refill_period_seconds": 60},
}
_TIGHT: Final = {"rpm": {"capacity": 2, "refill_period_seconds": 3600}}


class Client(Protocol):
    """Of one tenant."""

    @property
    def namespace(self) -> str: ...

    def call(self, method: str, target: str, body: object = None) -> Answer: ...

    def wait(self, duration_ms: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Known:
    """What a client of the tenant can know, and what it should not have.

    `leases` begins with one that has expired, one that was released and one that is open. `days` and `times` begin
    with today and with a moment of today.
    """

    leases: tuple[str, ...]
    cursors: tuple[str, ...]
    etags: tuple[str, ...]
    jobs: tuple[str, ...]
    days: tuple[str, ...] = ()
    times: tuple[str, ...] = ()
    identity: "KnownIdentity | None" = None
    foreign: "Known | None" = None


@dataclass(frozen=True, slots=True)
class KnownIdentity:
    """`refresh_tokens`: the first is good, the second was used, the third has expired.

    `tokens`: to revoke; those that the requests themselves are sent with are not among them.
    """

    client_ids: tuple[str, ...]
    client_secrets: tuple[str, ...]
    tokens: tuple[str, ...]
    refresh_tokens: tuple[str, ...]


def furnish(product: Product) -> Known:
    aged: dict[str, _AgedApp] = {}
    for namespace in (NAMESPACE, FOREIGN_NAMESPACE):
        _register(product, namespace)
        product.namespace = namespace
        aged[namespace] = _make_apps(product)
    product.wait(REFRESH_MS + LEEWAY_MS)
    product.namespace = FOREIGN_NAMESPACE
    foreign_identity = _known_identity(product, aged[FOREIGN_NAMESPACE])
    foreign = furnish_tenant(product)
    _must(product.call("PUT", f"/v1/limits/resources/{SECRETS[0]}", {"limits": _ROOMY}))
    _must(product.call("PUT", f"/v1/entities/{STRANGER}", {"parent": TEAM}))
    _must(product.call("PUT", f"/v1/limits/entities/{STRANGER}/{RESOURCES[0]}", {"limits": _ROOMY}))
    _acquired(product, STRANGER)
    _must(product.call("PUT", f"/v1/entities/{TEAM}", {"name": SECRETS[1], "metadata": {SECRETS[1]: SECRETS[1]}}))
    _must(product.call("PUT", f"/v1/orgs/{FOREIGN_NAMESPACE}/apps/{APP}", {"name": SECRETS[1]}))
    _spend_in_secret(product)
    product.services.jobs.run_open(product.services.work, lambda: False)
    product.namespace = NAMESPACE
    identity = _known_identity(product, aged[NAMESPACE])
    mine = furnish_tenant(product)
    _must(product.call("PUT", "/v1/selection/override", {"entity": APP, "label": "economy", "reason": "because"}))
    product.services.jobs.run_open({ROLLUP_ENTITY: product.services.work[ROLLUP_ENTITY]}, lambda: False)
    for org in (OTHER_ORG, PURGED_ORG):
        _must(product.call("PUT", f"/v1/orgs/{org}", {"model_ordering": ["fast"], "quotas": {"fast": 5}}))
    purge = _must(product.call("DELETE", f"/v1/orgs/{PURGED_ORG}"))
    return Known(
        leases=(*mine.leases, foreign.leases[0], mine.leases[0][:-1], mine.leases[0] + "A", mine.cursors[0]),
        cursors=(*mine.cursors, foreign.cursors[0], mine.cursors[0][:-2], mine.leases[0]),
        etags=(*mine.etags, *foreign.etags, '"1-1"', "*", 'W/"1-1"'),
        jobs=(*mine.jobs, *foreign.jobs, purge["id"]),
        days=mine.days,
        times=mine.times,
        identity=KnownIdentity(
            client_ids=(*identity.client_ids, foreign_identity.client_ids[-1], "nobody"),
            client_secrets=(*identity.client_secrets, "sk_guessed"),
            tokens=(*identity.tokens, *foreign_identity.tokens, "x.y.z"),
            refresh_tokens=(*identity.refresh_tokens, identity.tokens[0], identity.refresh_tokens[0][:-1]),
        ),
        foreign=foreign,
    )


def _register(product: Product, namespace: str) -> None:
    """Under an id that nobody would draw, with the credentials that the org's settings name."""
    for item in tenant_items(namespace, namespace):
        product.table.put({"Item": item})
    now_ms = product.clock.now_ms
    hashed = ClientSecrets(FixedKeys(), product.random.randrange).hash(_secret_of(namespace))
    secret = StoredSecret(1, hashed, now_ms, None)
    client = StoredClient(f"client-{namespace}", namespace, namespace, Role.ORG, 1, (secret,), 1, now_ms, now_ms)
    product.table.put({"Item": encode_client(client)})


def _secret_of(org: str) -> str:
    return f"sk_of_{org}"


@dataclass(frozen=True, slots=True)
class _AgedApp:
    """A client with a secret that was ended, one that is current, and the tokens of an old login."""

    client_id: str
    ended_secret: str
    secret: str
    expired: Mapping[str, Any]


def _make_apps(product: Product) -> _AgedApp:
    org = product.namespace
    made = [_must(product.call("PUT", f"/v1/orgs/{org}/apps/{app}", {"name": app})) for app in (APP, OTHER_APP)]
    for app, user in ((APP, APP_USER), (OTHER_APP, OTHER_APP_USER)):
        _must(product.call("PUT", f"/v1/entities/{user}", {"parent": app}))
    client_id, ended = made[0]["client_id"], made[0]["client_secret"]
    secret = _rotated(product, 0)
    return _AgedApp(client_id, ended, secret, _logged_in(product, client_id, secret))


def _known_identity(product: Product, aged: _AgedApp) -> KnownIdentity:
    """Also a secret that is about to end, a good token and a used one."""
    org = product.namespace
    secret = _rotated(product, 24)
    good, used = (_logged_in(product, aged.client_id, secret) for _ in range(2))
    _must(product.call("POST", "/v1/auth/refresh", {"refresh_token": used["refresh_token"]}))
    of_org = _logged_in(product, f"client-{org}", _secret_of(org))
    return KnownIdentity(
        client_ids=(aged.client_id, f"client-{org}"),
        client_secrets=(secret, _secret_of(org), aged.secret, aged.ended_secret),
        tokens=(good["access_token"], of_org["access_token"], of_org["refresh_token"], aged.expired["access_token"]),
        refresh_tokens=(good["refresh_token"], used["refresh_token"], aged.expired["refresh_token"]),
    )


def _rotated(product: Product, grace_hours: int) -> str:
    path = f"/v1/orgs/{product.namespace}/apps/{APP}/credentials/rotate"
    secret: str = _must(product.call("POST", path, {"grace_period_hours": grace_hours}))["client_secret"]
    return secret


def _logged_in(product: Product, client_id: str, client_secret: str) -> Mapping[str, Any]:
    return _must(product.call("POST", "/v1/auth/token", {"client_id": client_id, "client_secret": client_secret}))


def _spend_in_secret(product: Product) -> None:
    """A label, an event and an override of the other tenant, with names that nobody else may ever be told."""
    secret, text = SECRETS
    price = {"input_price_usd_micros_per_1m": 7, "output_price_usd_micros_per_1m": 7}
    _must(product.call("PUT", f"/v1/labels/{secret}", {"model_id": secret, "description": text, **price}))
    event = _event(text, "premium", STRANGER)
    _must(product.call("POST", "/v1/usage", {**event, "tags": {secret: text}}))
    _must(product.call("PUT", "/v1/selection/override", {"entity": TEAM, "label": "economy", "reason": text}))


def furnish_tenant(client: Client) -> Known:
    # First, as processes keep for a minute what they have read.
    _set_money(client)
    _must(client.call("PUT", f"/v1/entities/{TEAM}", {"name": "The team", "metadata": {"cost_center": 7}}))
    _must(client.call("PUT", f"/v1/entities/{USER}", {"parent": TEAM}))
    _must(client.call("PUT", f"/v1/entities/{LONER}", {}))
    _set_budgets(client)
    _must(client.call("PUT", "/v1/limits/system", {"limits": _ROOMY}))
    _must(client.call("PUT", f"/v1/limits/resources/{RESOURCES[0]}", {"limits": _ROOMY}))
    _must(client.call("PUT", f"/v1/limits/entities/{TEAM}/{RESOURCES[0]}", {"limits": _ROOMY}))
    _must(client.call("PUT", f"/v1/limits/entities/{LONER}/_default_", {"limits": {**_TIGHT, "tpm": None}}))
    leases = [_acquired(client, USER, ttl_seconds=1)]
    client.wait(1_001)
    leases += [_acquired(client, USER), _acquired(client, USER), _acquired(client, LONER)]
    _must(client.call("POST", "/v1/leases/release", {"lease": leases[1]}))
    job = _must(client.call("POST", "/v1/migrations", {"org": client.namespace, "dry_run": True}))
    spent = _spend(client, leases[3])
    lists = (
        *("/v1/entities", "/v1/resources", f"/v1/entities/{USER}/buckets", f"/v1/audit?entity={TEAM}"),
        *("/v1/labels", "/v1/events"),
    )
    pages = [_must(client.call("GET", f"{path}{'&' if '?' in path else '?'}limit=1")) for path in lists]
    return Known(
        leases=tuple(leases),
        cursors=tuple(cursor for page in pages if (cursor := page["next_cursor"]) is not None),
        etags=tuple(_etags(client)),
        jobs=(job["id"], spent.job),
        days=(spent.day, "2020-02-29", "2999-12-31"),
        times=(spent.moment, spent.moment.replace("Z", "+05:30"), "2020-02-29T23:59:59Z", "2999-12-31T00:00:00Z"),
    )


@dataclass(frozen=True, slots=True)
class _Spent:
    """`moment`: of an event of that day. `job`: that sums it up."""

    day: str
    moment: str
    job: str


def _set_money(client: Client) -> None:
    """Labels with a price, quotas, a profile, a price of an own model."""
    price = {"input_price_usd_micros_per_1m": 3_000_000, "output_price_usd_micros_per_1m": 15_000_000}
    for label in ORDERING:
        _must(client.call("PUT", f"/v1/labels/{label}", {"model_id": f"model-of-{label}", **price}))
    settings = {"model_ordering": list(ORDERING), "quotas": dict.fromkeys(ORDERING, 10**9)}
    _must(client.call("PUT", f"/v1/orgs/{client.namespace}", settings))
    _must(client.call("PUT", f"/v1/inference-profiles/{PROFILED}", {"inference_profile_arn": PROFILE_ARN}))
    column = {"input_usd_micros_per_1m": 1_000_000, "output_usd_micros_per_1m": 2_000_000}
    _must(client.call("PUT", f"/v1/prices?model_id={OWN_MODEL}", {"standard": column}))


def _set_budgets(client: Client) -> None:
    """Also a hard one, which takes no reserve to be asked: it counts calls alone."""
    soft = {"day_cost_usd_micros": 10**6, "month_tokens": 10**9, "enforcement": "soft"}
    hard = {"day_executions": 1000, "enforcement": "hard", "inherit": False}
    for entity, budget in (("_default_", soft), (TEAM, soft), (LONER, hard)):
        _must(client.call("PUT", f"/v1/budgets/{entity}", budget))


def _spend(client: Client, lease: str) -> _Spent:
    """Events: alone, in a batch, with a lease."""
    event = {**_event("r-1", "premium", USER), "tags": {"team": "red"}}
    answer = _must(client.call("POST", "/v1/usage", event))
    batch = [_event("r-2", "standard", LONER), {**_event("r-3", "economy", LONER), "lease": lease}]
    assert _must(client.call("POST", "/v1/usage/batch", {"events": batch}))["failed"] == 0
    shown = _must(client.call("GET", f"/v1/events?entity={USER}&day={answer['day']}"))
    job = _must(client.call("POST", "/v1/aggregates/rollup", {"entity": client.namespace}))
    return _Spent(answer["day"], shown["items"][0]["occurred_at"], job["id"])


def _event(request_id: str, label: str, entity: str) -> dict[str, Any]:
    tokens = {"input_tokens": 1_500, "output_tokens": 800}
    return {"request_id": request_id, "label": label, "entity": entity, "status": "ok", **tokens}


def _etags(client: Client) -> Iterable[str]:
    for path in (
        *(f"/v1/entities/{USER}", "/v1/limits/system", f"/v1/limits/entities/{LONER}/_default_"),
        *("/v1/labels/premium", f"/v1/inference-profiles/{PROFILED}"),
    ):
        yield client.call("GET", path).header("etag")


def _acquired(client: Client, entity: str, **more: object) -> str:
    body = {"entity": entity, "resource": RESOURCES[0], "consume": {"rpm": 1}, **more}
    lease: str = _must(client.call("POST", "/v1/acquire", body))["lease"]
    return lease


def _must(answer: Answer) -> Mapping[str, Any]:
    assert answer.status < 300, answer
    found: Mapping[str, Any] = answer.json()
    return found
