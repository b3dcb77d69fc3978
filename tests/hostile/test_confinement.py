"""Two tenants, and two apps of one: whatever an endpoint is given that belongs to somebody else looks missing.

Each request is sent twice, on two copies of the same table: once with ids of somebody else, once with ids that nobody
has. The answers differ in no byte but the id itself, and what belongs to others stays as it was, byte for byte.
"""

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from sluice.core.identity import Role
from sluice.core.orgs import OrgSettings, QuotaScope
from sluice.core.timelines import always
from sluice.edge.access import ACCESS, Scope
from tests.hostile.gateway import Answer
from tests.hostile.product import BASE_URL, PROFILE_ARN, PROFILE_MODEL, PROFILE_REGION, Product
from tests.tenancy import KEY, access_token, tenant_items

OWNER, STRANGER = "tenant-a", "tenant-b"
APP, OTHER_APP = "app-of-owner", "app-of-other"
RESOURCE = "gpt-4"
LABEL = "profiled"
"""Only the owner's app has it: no org defines it."""
CANARY = "canary"
TODAY = "2027-01-15"
BUDGET = {"day_cost_usd_micros": 10**9, "enforcement": "soft"}
LIMITS = {"limits": {"rpm": {"capacity": 9, "refill_period_seconds": 60}}}


@dataclass(frozen=True)
class Ids:
    """What a request can name. `lease` and `job` are drawn, so they come from the table they are used on."""

    org: str
    app: str
    entity: str
    lease: str
    job: str
    label: str = LABEL


MISSING = Ids("tenant-x", "app-of-nobody", "user-of-nobody", "", "0" * 32, "label-of-nobody")


def headers(product: Product, namespace: str, entity: str, role: Role) -> dict[str, str]:
    token = access_token("hostile", namespace, entity, role, now_ms=product.clock.now_ms)
    return {"authorization": f"Bearer {token}", "content-type": "application/json"}


def furnished() -> tuple[Product, Ids]:
    product, ids = _furnished()
    return product.copied(), ids


@cache
def _furnished() -> tuple[Product, Ids]:
    """The owner has a user below its app, with limits, a bucket, a lease, a job, usage, a label of its own and an
    override; the others have next to nothing."""
    product = Product(7)
    settings = OrgSettings(
        auto_register_entities=False,
        quota_scopes=always(QuotaScope.APP),
        model_ordering=(LABEL,),
        quotas_usd_micros={LABEL: 10**9},
    )
    for item in [
        *tenant_items(OWNER, OWNER, APP, OTHER_APP, settings=settings),
        *tenant_items(STRANGER, STRANGER, settings=OrgSettings(auto_register_entities=False)),
    ]:
        product.table.put({"Item": item})
    for namespace in (OWNER, STRANGER):
        product.namespace = namespace
        assert product.call("PUT", f"/v1/limits/resources/{RESOURCE}", LIMITS).status == 201
    product.namespace = OWNER
    user = "user-of-owners"
    assert product.call("PUT", f"/v1/entities/{user}", {"parent": APP, "name": CANARY}).status == 201
    assert product.call("PUT", f"/v1/limits/entities/{user}/{RESOURCE}", LIMITS).status == 201
    taken = product.call("POST", "/v1/acquire", {"entity": user, "resource": RESOURCE, "consume": {"rpm": 1}})
    job = product.call("POST", "/v1/migrations", {"org": OWNER, "dry_run": True})
    assert (taken.status, job.status) == (201, 202)
    for entity in ("_default_", user):
        assert product.call("PUT", f"/v1/budgets/{entity}", BUDGET).status == 201
    spend(product, user)
    return product, Ids(OWNER, APP, user, taken.json()["lease"], job.json()["id"])


def spend(product: Product, user: str) -> None:
    """As the owner, whatever has been there: a price, a profile of its app, two events, a total, an override."""
    of_app = f"?app={APP}"
    profile = {"inference_profile_arn": PROFILE_ARN, "description": CANARY}
    assert product.call("PUT", f"/v1/inference-profiles/{LABEL}{of_app}", profile).status == 201
    price = {"standard": {"input_usd_micros_per_1m": 3_000_000, "output_usd_micros_per_1m": 15_000_000}}
    assert product.call("PUT", f"/v1/prices?model_id={PROFILE_MODEL}", price).status == 201
    as_app = headers(product, OWNER, APP, Role.APP)
    for who, more in (("org", None), ("app", as_app)):
        event = {**usage_of(user, LABEL), "request_id": f"{CANARY}-{who}", "tags": {CANARY: CANARY}}
        assert product.call("POST", "/v1/usage", event, headers=more).status == 202
    assert product.call("POST", "/v1/aggregates/rollup", {"entity": APP}).status == 202
    product.services.jobs.run_open(product.services.work, lambda: False)
    override = {"entity": user, "label": LABEL, "reason": CANARY}
    assert product.call("PUT", "/v1/selection/override", override).status == 201


def usage_of(entity: str, label: str) -> dict[str, Any]:
    tokens = {"input_tokens": 1_500, "output_tokens": 800}
    return {"request_id": "r-1", "entity": entity, "label": label, "region": PROFILE_REGION, "status": "ok", **tokens}


def request_of(endpoint: tuple[str, str], ids: Ids) -> tuple[str, str, Any]:
    method, template = endpoint
    path = template.replace("<resource>", RESOURCE)
    for name in ("org", "app", "entity", "job", "label"):
        path = path.replace(f"<{name}>", getattr(ids, name))
    query = query_of(method, template, ids)
    return method, f"{path}?{query}" if query else path, body_of(method, template, ids)


def query_of(method: str, template: str, ids: Ids) -> str:
    if template.startswith("/v1/inference-profiles"):
        return f"app={ids.app}"
    from_day = f"&from_day={TODAY}" if method == "DELETE" else ""
    of_entity = f"entity={ids.entity}"
    queries = {
        "/v1/entities/<entity>/usage": f"resource={RESOURCE}",
        "/v1/audit": of_entity,
        "/v1/limits/effective": f"{of_entity}&resource={RESOURCE}",
        "/v1/prices": f"model_id={PROFILE_MODEL}{from_day}",
        "/v1/events": of_entity,
        "/v1/selection": of_entity,
        "/v1/selection/override": "" if method == "PUT" else of_entity,
        "/v1/aggregates": f"entity={ids.app}",
    }
    return queries.get(template, "")


def body_of(method: str, template: str, ids: Ids) -> Any:
    if method not in ("POST", "PUT"):
        return None
    if "/limits/" in template:
        return LIMITS
    asked = {"entity": ids.entity, "resource": RESOURCE, "consume": {"rpm": 1}}
    bodies: dict[str, Any] = {
        "/v1/acquire": asked,
        "/v1/explain": asked,
        "/v1/leases/settle": {"lease": ids.lease, "actual": {"rpm": 0}},
        "/v1/leases/adjust": {"lease": ids.lease, "delta": {"rpm": 1}},
        "/v1/leases/release": {"lease": ids.lease},
        "/v1/auth/revoke": {"token": "not a token"},
        "/v1/auth/token": {"client_id": f"client-{ids.app}", "client_secret": "sk_guessed"},
        "/v1/auth/refresh": {"refresh_token": "not a token"},
        "/v1/migrations": {"org": ids.org, "dry_run": True},
        "/v1/usage": usage_of(ids.entity, ids.label),
        "/v1/usage/batch": {"events": [usage_of(ids.entity, ids.label)]},
        "/v1/selection/override": {"entity": ids.entity, "label": ids.label, "reason": "because"},
        "/v1/aggregates/rollup": {"entity": ids.app},
        "/v1/prices/quote": {"label": ids.label, "region": PROFILE_REGION, "input_tokens": 1, "output_tokens": 1},
        "/v1/prices": {"standard": {"input_usd_micros_per_1m": 1}},
        "/v1/labels/<label>": {"model_id": PROFILE_MODEL},
        "/v1/inference-profiles/<label>": {"inference_profile_arn": PROFILE_ARN},
        "/v1/budgets/_default_": BUDGET,
        "/v1/budgets/<entity>": BUDGET,
    }
    return bodies.get(template, {})


def sent(product: Product, endpoint: tuple[str, str], ids: Ids, caller: tuple[str, str, Role]) -> Answer:
    method, path, body = request_of(endpoint, ids)
    content = b"" if body is None else json.dumps(body).encode()
    more = {"idempotency-key": "k"} if path == "/v1/leases/adjust" else {}
    return product.send(method, BASE_URL + path, {**headers(product, *caller), **more}, content)


def seen(answer: Answer, endpoint: tuple[str, str], ids: Ids) -> tuple[int, str, str]:
    """Without the ids that the client sent itself."""
    text, told = answer.body.decode(), str(sorted(answer.headers))
    request = str(request_of(endpoint, ids))
    for name in ("org", "app", "entity", "job", "label"):
        if getattr(ids, name) in request:
            text = text.replace(getattr(ids, name), f"<{name}>")
    return answer.status, told, text


CALLERS = {
    "another tenant's org": (STRANGER, STRANGER, Role.ORG),
    "another app of the org": (OWNER, OTHER_APP, Role.APP),
}
# An app's own namespace is the owner's: what it makes there under a new id is new, and that is the only difference.
NEW_WHERE_NOBODY_HAS_IT = {("PUT", "/v1/entities/<entity>")}


@pytest.mark.parametrize("who", CALLERS)
@pytest.mark.parametrize("endpoint", ACCESS, ids=" ".join)
def test_what_is_somebody_elses_looks_missing(endpoint: tuple[str, str], who: str) -> None:
    caller = CALLERS[who]
    product, owned = furnished()
    nobody = product.copied()
    before = product.items_of(OWNER)
    found = sent(product, endpoint, owned, caller)
    missing = sent(nobody, endpoint, MISSING, caller)
    assert found.status < 500
    assert CANARY.encode() not in found.body
    if caller[0] == OWNER and endpoint in NEW_WHERE_NOBODY_HAS_IT:
        assert (found.status, missing.status) == (404, 201)
    else:
        assert seen(found, endpoint, owned) == seen(missing, endpoint, MISSING)
    if caller[2] not in ACCESS[endpoint].roles and ACCESS[endpoint].scope is not Scope.OPEN:
        # The operator's endpoints know no token at all where they take none.
        assert found.status in (401, 403)
    assert product.items_of(OWNER) == before


@pytest.mark.parametrize("endpoint", ACCESS, ids=" ".join)
def test_an_app_does_all_this_with_its_own(endpoint: tuple[str, str]) -> None:
    """The test above would also pass if an app were refused everything."""
    product, owned = furnished()
    if endpoint[0] == "DELETE":
        # With limits or a budget that its org set it may not be removed by an app.
        assert product.call("DELETE", f"/v1/limits/entities/{owned.entity}/{RESOURCE}").status == 204
        assert product.call("DELETE", f"/v1/budgets/{owned.entity}").status == 204
    answer = sent(product, endpoint, owned, (OWNER, APP, Role.APP))
    access = ACCESS[endpoint]
    if Role.APP in access.roles:
        assert answer.status in (200, 201, 202, 204, 207), answer.body
        assert answer.status != 207 or answer.json()["failed"] == 0, answer.body
    elif access.scope is not Scope.OPEN:
        assert answer.status == 403


@pytest.mark.parametrize("endpoint", [("POST", "/v1/acquire"), ("POST", "/v1/explain")], ids=" ".join)
def test_an_entity_is_asked_for_by_its_own_app_only_also_where_asking_makes_known(endpoint: tuple[str, str]) -> None:
    product, owned = furnished()
    product.table.put({"Item": next(item for item in tenant_items(OWNER, OWNER) if item["kind"] == "org")})
    product.wait(60_000)
    assert sent(product, endpoint, owned, (OWNER, OTHER_APP, Role.APP)).status == 404
    assert sent(product, endpoint, owned, (OWNER, APP, Role.APP)).status < 300
    assert sent(product, endpoint, MISSING, (OWNER, OTHER_APP, Role.APP)).status < 300


def test_a_moved_entity_changes_hands_within_a_minute() -> None:
    product, owned = furnished()
    acquire, other = ("POST", "/v1/acquire"), (OWNER, OTHER_APP, Role.APP)
    assert sent(product, acquire, owned, other).status == 404
    product.namespace = OWNER
    assert product.call("PUT", f"/v1/entities/{owned.entity}", {"parent": OTHER_APP}).status == 200
    product.wait(60_000)
    assert sent(product, acquire, owned, other).status == 201
    assert sent(product, acquire, owned, (OWNER, APP, Role.APP)).status == 404
    assert sent(product, ("GET", "/v1/entities/<entity>"), owned, (OWNER, APP, Role.APP)).status == 404


def test_the_operator_key_is_no_token_and_a_token_is_no_operator_key() -> None:
    product, owned = furnished()
    as_operator = {"x-api-key": KEY}
    assert product.call("GET", "/v1/orgs", headers=as_operator).status == 200
    assert product.call("GET", "/v1/entities", headers=as_operator).status == 401
    token = headers(product, OWNER, OWNER, Role.ORG)["authorization"].removeprefix("Bearer ")
    assert product.call("GET", "/v1/orgs", headers={"x-api-key": token}).status == 401
    assert product.call("GET", f"/v1/jobs/{owned.job}?org={OWNER}", headers=as_operator).status == 200
    assert product.call("GET", f"/v1/jobs/{owned.job}", headers=as_operator).status == 404


def test_an_app_puts_entities_below_itself_and_nowhere_else() -> None:
    product, owned = furnished()
    path, app = "/v1/entities/fresh", headers(product, OWNER, OTHER_APP, Role.APP)
    made = product.call("PUT", path, {}, headers=app)
    assert (made.status, made.json()["parent"]) == (201, OTHER_APP)
    for parent in (None, OWNER, APP, owned.entity, "nobody"):
        refused = product.call("PUT", path, {"parent": parent}, headers=app)
        assert (refused.status, refused.json()["field"]) == (400, "parent")
    # Hole: an app that stops cascading is no longer held by the limits of its org.
    for target in (path, "/v1/entities/new", f"/v1/entities/{OTHER_APP}"):
        assert product.call("PUT", target, {"cascade": False}, headers=app).status == 403
        assert product.call("PUT", target, {"cascade": True}, headers=app).status < 300
    assert product.call("DELETE", "/v1/entities/new", headers=app).status == 204
    assert product.call("PUT", "/v1/entities/deeper", {"parent": "fresh"}, headers=app).status == 201
    assert product.call("GET", "/v1/entities/deeper", headers=app).status == 200
    listed = product.call("GET", "/v1/entities", headers=app).json()["items"]
    assert [entity["entity"] for entity in listed] == ["fresh"]


def test_an_app_does_not_get_rid_of_limits_that_the_org_set() -> None:
    """Hole: what an app may remove or move takes limits along that only the org may change."""
    product, owned = furnished()
    app = headers(product, OWNER, APP, Role.APP)
    refused = product.call("DELETE", f"/v1/entities/{owned.entity}", headers=app)
    assert (refused.status, refused.json()["type"]) == (403, "urn:sluice:problem:forbidden")
    assert product.call("PUT", "/v1/entities/group", {"parent": APP}).status == 201
    assert product.call("PUT", "/v1/entities/member", {"parent": "group"}).status == 201
    assert product.call("PUT", "/v1/entities/member", {"parent": APP}, headers=app).status == 200
    assert product.call("PUT", "/v1/entities/member", {"parent": "group"}, headers=app).status == 200
    assert product.call("PUT", f"/v1/limits/entities/group/{RESOURCE}", LIMITS).status == 201
    assert product.call("PUT", "/v1/entities/member", {"parent": APP}, headers=app).status == 403
    assert product.call("PUT", "/v1/entities/member", {"name": "stays"}, headers=app).status == 200
    assert product.call("DELETE", "/v1/entities/member", headers=app).status == 403
    for entity in ("member", owned.entity):
        assert product.call("DELETE", f"/v1/entities/{entity}").status == 204


def test_the_history_of_an_id_begins_with_its_present_owner() -> None:
    """Hole: the audit of an id that was another app's tells that one's client."""
    product, _ = furnished()
    first, second = (headers(product, OWNER, one, Role.APP) for one in (APP, OTHER_APP))
    path, audit = "/v1/entities/passed-on", "/v1/audit?entity=passed-on"
    assert product.call("PUT", path, {"name": "first"}, headers=first).status == 201
    assert product.call("DELETE", path, headers=first).status == 204
    product.wait(1)
    assert product.call("PUT", path, {"name": "second"}, headers=second).status == 201
    shown = product.call("GET", audit, headers=second).json()["items"]
    assert [event["actor"] for event in shown] == [f"client-{OTHER_APP}"]
    assert len(product.call("GET", audit).json()["items"]) == 3


def test_an_explanation_is_not_given_by_what_was_nobodys_a_minute_ago() -> None:
    product, _ = furnished()
    product.table.put({"Item": next(item for item in tenant_items(OWNER, OWNER) if item["kind"] == "org")})
    product.wait(60_000)
    ids = Ids(OWNER, APP, "newcomer", "", "")
    explain, first, second = ("POST", "/v1/explain"), (OWNER, APP, Role.APP), (OWNER, OTHER_APP, Role.APP)
    assert sent(product, explain, ids, second).status == 200
    elsewhere = product.copied()
    elsewhere.namespace = OWNER
    assert elsewhere.call("PUT", "/v1/entities/newcomer", {}, headers=headers(product, *first)).status == 201
    product.table.put(
        {"Item": next(i for i in elsewhere.table.items() if i.get("entity_id") == "newcomer" and i["kind"] == "entity")}
    )
    assert sent(product, explain, ids, second).status == 404


def test_an_app_that_is_gone_does_not_make_itself_anew() -> None:
    product, _ = furnished()
    app = headers(product, OWNER, OTHER_APP, Role.APP)
    assert product.call("GET", "/v1/whoami", headers=app).status == 200
    for item in [i for i in product.table.items() if i.get("entity_id") == OTHER_APP and i["kind"] == "entity"]:
        product.table.delete({"Key": {name: item[name] for name in ("PK", "SK")}})
    assert product.call("PUT", f"/v1/entities/{OTHER_APP}", {"parent": None}, headers=app).status == 404


def test_what_is_wrong_before_a_route_is_reached_is_a_problem_document_too() -> None:
    product, _ = furnished()
    org = next(item for item in tenant_items(STRANGER, STRANGER) if item["kind"] == "org")
    product.table.put({"Item": {**org, "zones": "damaged"}})
    answer = product.send("GET", BASE_URL + "/v1/whoami", headers(product, STRANGER, STRANGER, Role.ORG), b"")
    assert (answer.status, answer.content_type) == (500, "application/problem+json")
