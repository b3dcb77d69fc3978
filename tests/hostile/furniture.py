"""Tenants with something in every corner, so that generated requests meet what exists."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from sluice.repository.namespaces import Namespace, NamespaceState, create_writes
from tests.hostile.gateway import Answer
from tests.hostile.product import NAMESPACE, Product

# One is the beginning of the other, and they have the same entities.
FOREIGN_NAMESPACE: Final = "tenant-2"
SECRETS: Final = ("kept-from-others", "never-to-be-told")
"""A resource and a text of the other tenant that no request names."""

TEAM: Final = "team"
USER: Final = "user"
LONER: Final = "0"
STRANGER: Final = "stranger"
"""Only the other tenant has it."""
ENTITIES: Final = (TEAM, USER, LONER, STRANGER, "User", "user.1", "nobody")
RESOURCES: Final = ("gpt-4", "search", "0")
LIMIT_NAMES: Final = ("rpm", "tpm")
LEGACY_NAMESPACES: Final = (NAMESPACE, FOREIGN_NAMESPACE, "", "old", "_")

_ROOMY: Final = {
    "rpm": {"capacity": 1000, "refill_period_seconds": 60},
    "tpm": {"capacity": 10**6, "burst": 2 * 10**6, "refill_period_seconds": 60},
}
_TIGHT: Final = {"rpm": {"capacity": 2, "refill_period_seconds": 3600}}


class Client(Protocol):
    """Of one tenant."""

    def call(self, method: str, target: str, body: object = None) -> Answer: ...

    def wait(self, duration_ms: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Known:
    """What a client of the tenant can know, and what it should not have.

    `leases` begins with one that has expired, one that was released and one that is open.
    """

    leases: tuple[str, ...]
    cursors: tuple[str, ...]
    etags: tuple[str, ...]
    jobs: tuple[str, ...]
    foreign: "Known | None" = None


def furnish(product: Product) -> Known:
    for namespace in (NAMESPACE, FOREIGN_NAMESPACE):
        _register(product, namespace)
    product.namespace = FOREIGN_NAMESPACE
    foreign = furnish_tenant(product)
    _must(product.call("PUT", f"/v1/limits/resources/{SECRETS[0]}", {"limits": _ROOMY}))
    _must(product.call("PUT", f"/v1/entities/{STRANGER}", {"parent": TEAM}))
    _must(product.call("PUT", f"/v1/limits/entities/{STRANGER}/{RESOURCES[0]}", {"limits": _ROOMY}))
    _acquired(product, STRANGER)
    _must(product.call("PUT", f"/v1/entities/{TEAM}", {"name": SECRETS[1], "metadata": {SECRETS[1]: SECRETS[1]}}))
    product.services.jobs.run_open(product.services.work, lambda: False)
    product.namespace = NAMESPACE
    mine = furnish_tenant(product)
    return Known(
        leases=(*mine.leases, foreign.leases[0], mine.leases[0][:-1], mine.leases[0] + "A", mine.cursors[0]),
        cursors=(*mine.cursors, foreign.cursors[0], mine.cursors[0][:-2], mine.leases[0]),
        etags=(*mine.etags, *foreign.etags, '"1-1"', "*", 'W/"1-1"'),
        jobs=(*mine.jobs, *foreign.jobs),
        foreign=foreign,
    )


def _register(product: Product, namespace: str) -> None:
    """Under an id that nobody would draw."""
    now_ms = product.clock.now_ms
    made = Namespace(f"name of {namespace}", namespace, NamespaceState.ACTIVE, None, now_ms, now_ms)
    product.services.store.transact(create_writes(made), f"register-{namespace}")


def furnish_tenant(client: Client) -> Known:
    _must(client.call("PUT", f"/v1/entities/{TEAM}", {"name": "The team", "metadata": {"cost_center": 7}}))
    _must(client.call("PUT", f"/v1/entities/{USER}", {"parent": TEAM}))
    _must(client.call("PUT", f"/v1/entities/{LONER}", {}))
    _must(client.call("PUT", "/v1/limits/system", {"limits": _ROOMY}))
    _must(client.call("PUT", f"/v1/limits/resources/{RESOURCES[0]}", {"limits": _ROOMY}))
    _must(client.call("PUT", f"/v1/limits/entities/{TEAM}/{RESOURCES[0]}", {"limits": _ROOMY}))
    _must(client.call("PUT", f"/v1/limits/entities/{LONER}/_default_", {"limits": {**_TIGHT, "tpm": None}}))
    leases = [_acquired(client, USER, ttl_seconds=1)]
    client.wait(1_001)
    leases += [_acquired(client, USER), _acquired(client, USER), _acquired(client, LONER)]
    _must(client.call("POST", "/v1/leases/release", {"lease": leases[1]}))
    job = _must(client.call("POST", "/v1/migrations", {"dry_run": True}))
    lists = ("/v1/entities", "/v1/resources", f"/v1/entities/{USER}/buckets", f"/v1/audit?entity={TEAM}")
    pages = [_must(client.call("GET", f"{path}{'&' if '?' in path else '?'}limit=1")) for path in lists]
    return Known(
        leases=tuple(leases),
        cursors=tuple(cursor for page in pages if (cursor := page["next_cursor"]) is not None),
        etags=tuple(_etags(client)),
        jobs=(job["id"],),
    )


def _etags(client: Client) -> Iterable[str]:
    for path in (f"/v1/entities/{USER}", "/v1/limits/system", f"/v1/limits/entities/{LONER}/_default_"):
        yield client.call("GET", path).header("etag")


def _acquired(client: Client, entity: str, **more: object) -> str:
    body = {"entity": entity, "resource": RESOURCES[0], "consume": {"rpm": 1}, **more}
    lease: str = _must(client.call("POST", "/v1/acquire", body))["lease"]
    return lease


def _must(answer: Answer) -> Mapping[str, Any]:
    assert answer.status < 300, answer
    found: Mapping[str, Any] = answer.json()
    return found
