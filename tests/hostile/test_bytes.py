"""What no generator of requests would send: bytes that are no JSON, types that are none, headers of all kinds."""

import json
from collections.abc import Callable
from random import Random
from urllib.parse import quote, urlsplit

import pytest

from tests.hostile.checks import complaints
from tests.hostile.furniture import USER
from tests.hostile.fuzz import SEED
from tests.hostile.gateway import decoded_path
from tests.hostile.ids import hostile_ids
from tests.hostile.product import BASE_URL, FOREIGN_NAMESPACE, Product
from tests.hostile.test_bad_money import EVENT, OVERRIDE, PROFILE, QUOTE

COUNT = 250
BODIES = {
    "/v1/acquire": {"entity": USER, "resource": "gpt-4", "consume": {"rpm": 1}, "ttl_seconds": 5},
    "/v1/explain": {"entity": USER, "resource": "gpt-4", "consume": {"rpm": 1}},
    "/v1/leases/settle": {"lease": "x", "actual": {"rpm": 1}},
    "/v1/leases/adjust": {"lease": "x", "delta": {"rpm": -1}},
    "/v1/leases/release": {"lease": "x"},
    "/v1/migrations": {"org": "tenant", "dry_run": True, "legacy_namespace": ""},
    "/v1/auth/token": {"client_id": "client-tenant", "client_secret": "sk_of_tenant"},
    "/v1/auth/refresh": {"refresh_token": "x.y.z"},
    "/v1/auth/revoke": {"token": "x.y.z"},
    "/v1/orgs/other/credentials/rotate": {"grace_period_hours": 1},
    "/v1/orgs/tenant/apps/app/credentials/rotate": {"grace_period_hours": 1},
    "/v1/usage": {**EVENT, "tags": {"a": "b"}, "occurred_at": "2027-02-14T10:00:00Z"},
    "/v1/usage/batch": {"events": [{**EVENT, "request_id": "1"}, {**EVENT, "request_id": "2"}]},
    "/v1/prices/quote": {**QUOTE, "day": "2027-02-14", "pricing": "standard"},
    "/v1/aggregates/rollup": {"entity": "app"},
}
PUTS = {
    "/v1/entities/user": {"parent": "team", "name": "n", "metadata": {"a": 1, "b": "c"}},
    "/v1/limits/system": {"limits": {"rpm": {"capacity": 5, "refill_period_seconds": 1}}, "on_unavailable": "allow"},
    "/v1/limits/entities/user/gpt-4": {"limits": {"rpm": None}},
    "/v1/orgs/other": {"timezone": "Asia/Kolkata", "model_ordering": ["a"], "quotas": {"a": 1}, "counter_shards": 9},
    "/v1/orgs/tenant/apps/app": {"name": "n", "suspended": False, "quotas": {"fast": None}},
    "/v1/labels/premium": {"model_id": "m", "tier": "t", "input_price_usd_micros_per_1m": 5},
    "/v1/prices?model_id=m": {"from_day": "2027-02-14", "standard": {"input_usd_micros_per_1m": 5}, "region": None},
    "/v1/inference-profiles/new?app=app": PROFILE,
    "/v1/selection/override": OVERRIDE,
}
TARGETS = [("POST", path, body) for path, body in BODIES.items()] + [("PUT", path, body) for path, body in PUTS.items()]
PIECES = (
    *(
        b"\x00",
        b"\xff",
        b"\xc3",
        b"\xed\xa0\x80",
        b"\xef\xbb\xbf",
        b'"',
        b"\\",
        b"\\u0000",
        b"\\ud800",
        b"{",
        b"}",
        b"[",
    ),
    *(b"]", b",", b":", b"null", b"true", b"NaN", b"-Infinity", b"1e400", b"-0", b"0.5", b"1" * 5000, b"[" * 5000),
    *(b'"__proto__":1,', b'"entity":"x",', b"/*", b"\n", b" " * 5000, b"\xf0\x9f\x98\x80", b"'", b"1_0", b"0x1"),
)
TYPES = (
    *(
        "application/json",
        "Application/JSON; charset=utf-8",
        "application/json;charset=utf-16",
        "text/json",
        "text/plain",
    ),
    *("application/problem+json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "json"),
    *("application/octet-stream", "application/json, text/plain", "é", "*/*", "application/json\t"),
)


def mutated(random: Random, body: bytes) -> bytes:
    """Something inserted, cut out, doubled or turned around, a few times."""
    for _ in range(random.randint(1, 4)):
        at, to = sorted(random.randrange(len(body) + 1) for _ in range(2))
        match random.randrange(5):
            case 0:
                body = body[:at] + body[to:]
            case 1:
                body = body[:to] + body[at:]
            case 2:
                body = body[:at] + bytes(reversed(body[at:to])) + body[to:]
            case _:
                body = body[:at] + random.choice(PIECES) + body[at:]
    return body


@pytest.fixture
def ask(product: Product) -> Callable[..., None]:
    """Sends it and judges the answer."""

    def asked(method: str, target: str, headers: dict[str, str], body: bytes = b"") -> None:
        before = product.changes
        answer = product.send(method, BASE_URL + target, headers, body)
        path = decoded_path(urlsplit(target).path)
        wrong = list(complaints(method, path, answer, changed=product.changes != before))
        assert not wrong, (wrong, method, target, headers, body[:2000], answer)

    return asked


@pytest.mark.parametrize(("method", "path", "body"), TARGETS)
def test_bodies_that_were_damaged(
    method: str, path: str, body: object, product: Product, ask: Callable[..., None]
) -> None:
    random = Random(f"{SEED} {path}")
    foreign = product.items_of(FOREIGN_NAMESPACE)
    whole = json.dumps(body).encode()
    for number in range(COUNT):
        headers = {"content-type": "application/json" if random.random() < 0.8 else random.choice(TYPES)}
        if random.random() < 0.5:
            headers["idempotency-key"] = f"key-{number}"
        ask(method, path, headers, mutated(random, whole))
    assert product.items_of(FOREIGN_NAMESPACE) == foreign


@pytest.mark.parametrize(
    "header", ["if-match", "idempotency-key", "accept", "authorization", "x-api-key", "x-request-id"]
)
def test_headers_of_all_kinds(header: str, ask: Callable[..., None]) -> None:
    json_type = {"content-type": "application/json"}
    for value in (*hostile_ids(150, SEED), '"' * 1000, '"1-1",' * 1000, "W/", '""', "*,*", "é" * 200):
        ask("PUT", "/v1/entities/user", {**json_type, header: value}, b"{}")
        ask("POST", "/v1/acquire", {**json_type, header: value}, json.dumps(BODIES["/v1/acquire"]).encode())
        ask("DELETE", "/v1/limits/resources/search", {header: value})
        ask("GET", "/v1/entities", {header: value})
        ask("PUT", "/v1/orgs/other", {**json_type, header: value}, b"{}")
        ask("GET", "/v1/whoami", {header: value})


PLACES = (
    *("/v1/entities/{}", "/v1/limits/entities/user/{}", "/v1/jobs/{}", "/v1/{}", "/{}"),
    *("/v1/orgs/{}", "/v1/orgs/tenant/apps/{}", "/v1/orgs/{}/apps/app", "/v1/labels/{}", "/v1/inference-profiles/{}"),
)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH"])
def test_ids_of_all_kinds_in_a_path(method: str, place: str, product: Product, ask: Callable[..., None]) -> None:
    headers = {"content-type": "application/json"}
    bodies = {"limits": b'{"limits":{"rpm":null}}', "labels": b'{"model_id":"m"}'}
    body = next((body for part, body in bodies.items() if part in place), b"{}")
    for one in hostile_ids(200, SEED):
        ask(method, place.format(quote(one.encode("utf-8", "surrogatepass"), safe="")), headers, body)
        ask(method, place.format(quote(one.encode("utf-8", "surrogatepass"), safe="/%?&=")), headers, body)


@pytest.mark.parametrize(
    "target",
    [
        "/v1/audit?entity={}",
        "/v1/limits/entities?resource={}",
        "/v1/entities?cursor={}",
        "/v1/jobs?limit={}",
        "/v1/jobs?org={}",
        "/v1/prices?model_id={}",
        "/v1/inference-profiles?app={}",
        "/v1/selection?entity={}",
        "/v1/selection?region={}",
        "/v1/aggregates?from={}",
        "/v1/events?day={}",
        "/v1/events?cursor={}",
    ],
)
def test_ids_of_all_kinds_in_a_query(target: str, ask: Callable[..., None]) -> None:
    for one in hostile_ids(300, SEED):
        escaped = quote(one.encode("utf-8", "surrogatepass"), safe="")
        ask("GET", target.format(escaped), {})
        ask("GET", f"{target.format(escaped)}&{target.partition('?')[2].format(escaped)}", {})
