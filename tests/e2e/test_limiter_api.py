"""Leases, keys, explain, lists, audit and jobs, over the deployed API."""

import uuid

from tests.e2e.api import Answer, Api
from tests.e2e.conftest import ORG
from tests.e2e.test_api import acquire_body, assert_problem


def name(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def slow_body(**changes: object) -> dict[str, object]:
    limits = {"rpm": {"capacity": 10, "refill_period_seconds": 3600}}
    return acquire_body(limits=limits) | changes


def test_a_lease_is_adjusted_settled_and_closed_once(api: Api) -> None:
    body = slow_body(consume={"rpm": 4})
    taken = api.call("POST", "/v1/acquire", body).json()
    lease = {"lease": taken["lease"]}
    adjust = {**lease, "delta": {"rpm": 3}}
    assert_problem(api.call("POST", "/v1/leases/adjust", adjust), 400, "invalid-request")
    for _ in range(2):
        adjusted = api.call("POST", "/v1/leases/adjust", adjust, more_headers={"Idempotency-Key": "k1"})
        assert (adjusted.status, adjusted.json()["adjusted"]) == (200, {"rpm": 3}), adjusted.body
    for _ in range(2):
        settled = api.call("POST", "/v1/leases/settle", {**lease, "actual": {"rpm": 2}})
        assert (settled.status, settled.json()["settled"]) == (200, {"rpm": 2}), settled.body
    assert_problem(api.call("POST", "/v1/leases/release", lease), 409, "lease-closed")
    left = api.call("POST", "/v1/acquire", body | {"consume": {"rpm": 1}}).json()["levels"][0]["remaining"]
    assert left == {"rpm": 7}
    forged = taken["lease"][:-4] + "AAAA"
    assert_problem(api.call("POST", "/v1/leases/release", {"lease": forged}), 400, "invalid-lease")


def test_a_key_makes_an_acquire_happen_once(api: Api) -> None:
    body = slow_body()
    headers = {"Idempotency-Key": name("key")}
    first, again = (api.call("POST", "/v1/acquire", body, more_headers=headers) for _ in range(2))
    assert (first.status, again.status) == (201, 201)
    assert first.json() == again.json()
    assert_problem(
        api.call("POST", "/v1/acquire", body | {"consume": {"rpm": 2}}, more_headers=headers),
        422,
        "idempotency-mismatch",
    )
    explained = api.call("POST", "/v1/explain", body | {"consume": {"rpm": 10}}).json()
    assert explained["admissible"] is False
    assert explained["checks"][0]["available"] == 9
    assert {remedy["kind"] for remedy in explained["remedies"]} == {"wait", "smaller_amount"}


def pages(api: Api, path: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    answer = api.call("GET", path).json()
    found += answer["items"]
    while answer["next_cursor"] is not None:
        separator = "&" if "?" in path else "?"
        answer = api.call("GET", f"{path}{separator}cursor={answer['next_cursor']}").json()
        found += answer["items"]
    return found


def test_what_was_made_is_listed_and_told(api: Api) -> None:
    team, resource = name("team"), name("resource")
    members = [f"{team}-{number}" for number in range(3)]
    assert api.call("PUT", f"/v1/entities/{team}", {}).status == 201
    for member in members:
        assert api.call("PUT", f"/v1/entities/{member}", {"parent": team}).status == 201
    limits = {"limits": {"rpm": {"capacity": 10, "refill_period_seconds": 3600}}}
    assert api.call("PUT", f"/v1/limits/entities/{members[0]}/{resource}", limits).status == 201
    asked = {"entity": members[0], "resource": resource, "consume": {"rpm": 4}}
    assert api.call("POST", "/v1/acquire", asked).status == 201
    children = pages(api, f"/v1/entities/{team}/children?limit=2")
    assert sorted(str(child["entity"]) for child in children) == members
    (bucket,) = pages(api, f"/v1/entities/{members[0]}/buckets")
    assert (bucket["available"], bucket["capacity"], bucket["shards"]) == (6, 10, 1)
    (capacity,) = pages(api, f"/v1/resources/{resource}/capacity")
    assert capacity["entity"] == members[0]
    assert [entry["entity"] for entry in pages(api, f"/v1/limits/entities?resource={resource}")] == [members[0]]
    told = pages(api, f"/v1/audit?entity={members[0]}&limit=1")
    assert [event["action"] for event in told] == ["limits.put", "entity.put"]
    assert_problem(api.call("GET", "/v1/entities?cursor=AAAA"), 400, "invalid-request")


def test_a_dry_migration_is_a_job(operator: Api, api: Api) -> None:
    """The operator starts it; the org sees it as well."""
    answer: Answer = operator.call("POST", "/v1/migrations", {"org": ORG, "dry_run": True})
    assert answer.status == 202, answer.body
    for job in (
        operator.call("GET", answer.headers["location"]).json(),
        api.call("GET", "/v1/jobs").json()["items"][0],
    ):
        assert (job["id"], job["kind"]) == (answer.json()["id"], answer.json()["kind"])
        assert job["state"] in {"queued", "running", "done"}
