"""The whole life of an org over HTTP: made, used, and removed without a trace in table and bucket."""

import time
import uuid
from dataclasses import dataclass
from typing import Any

import pytest

from local.deploy import Outputs
from local.engine import Engine, dynamodb_client, engine_client
from sluice.repository import keys
from sluice.repository.archive import archive_prefix
from sluice.repository.namespaces import decode_namespace
from sluice.repository.wire import item_from_wire, item_to_wire
from tests.e2e.api import Api
from tests.e2e.test_api import assert_problem

# Generous: it runs every minute and waits two until every process has noticed; only a purge that hangs can reach this.
DONE_SECONDS = 600


def everything(engine: Engine, outputs: Outputs) -> list[Any]:
    pages = dynamodb_client(engine.endpoint).get_paginator("scan").paginate(TableName=outputs.table)
    return [item for page in pages for item in page["Items"]]


def namespace_of(engine: Engine, outputs: Outputs, org: str) -> str:
    client: Any = dynamodb_client(engine.endpoint)
    key = item_to_wire({**keys.namespace_by_name(org).attributes})
    answer = client.get_item(TableName=outputs.table, Key=key)
    return decode_namespace(item_from_wire(answer["Item"])).namespace_id


@dataclass(frozen=True)
class Leaving:
    """An org whose purge has begun. `neighbour`: what lies beside its part of the archive."""

    org: str
    namespace: str
    clients: frozenset[str]
    job: str
    as_org: Api
    neighbour: str


@pytest.fixture(scope="session")
def leaving(deployed_engine: tuple[Engine, Outputs], operator: Api) -> Leaving:
    """Of the session: one of the module would be another after the tests of other files."""
    engine, outputs = deployed_engine
    org = f"org-{uuid.uuid4().hex[:12]}"
    made = operator.call("PUT", f"/v1/orgs/{org}", {"name": "Short-lived"}).json()
    as_org = operator.logged_in(made)
    app = as_org.call("PUT", f"/v1/orgs/{org}/apps/app-1", {}).json()
    as_app = operator.logged_in(app)
    per_hour = {"limits": {"rpm": {"capacity": 5, "refill_period_seconds": 3600}}}
    assert as_org.call("PUT", "/v1/limits/resources/chat", per_hour).status == 201
    asked = {"entity": "user-1", "resource": "chat", "consume": {"rpm": 1}}
    lease = as_app.call("POST", "/v1/acquire", asked, more_headers={"Idempotency-Key": "k"}).json()["lease"]
    assert as_app.call("POST", "/v1/leases/settle", {"lease": lease, "actual": {"rpm": 2}}).status == 200
    revoked = as_app.headers["authorization"].removeprefix("Bearer ")
    assert as_org.call("POST", "/v1/auth/revoke", {"token": revoked}).status == 204

    namespace = namespace_of(engine, outputs, org)
    s3 = engine_client("s3", engine.endpoint)
    neighbour = f"{archive_prefix(namespace + 'x')}1"
    for key in (*(f"{archive_prefix(namespace)}{number}" for number in (1, 1, 2)), neighbour):
        s3.put_object(Bucket=outputs.archive_bucket, Key=key, Body=b"x")
    s3.delete_object(Bucket=outputs.archive_bucket, Key=f"{archive_prefix(namespace)}2")
    clients = frozenset({made["client_id"], app["client_id"]})
    assert {item["client_id"]["S"] for item in everything(engine, outputs) if _is_client(item)} >= clients

    started = operator.call("DELETE", f"/v1/orgs/{org}")
    assert started.status == 202, started.body
    login = {key: app[key] for key in ("client_id", "client_secret")}
    assert_problem(operator.call("POST", "/v1/auth/token", login), 401, "unauthorized")
    return Leaving(org, namespace, clients, started.headers["location"], as_org, neighbour)


@pytest.mark.early
def test_an_org_that_leaves_is_refused_at_once(leaving: Leaving, operator: Api) -> None:
    """Comes first, and the test below last: between them the purge has its minutes."""
    assert operator.call("GET", leaving.job).json()["kind"] == "purge"
    assert_problem(operator.call("PUT", f"/v1/orgs/{leaving.org}", {}), 409, "in-use")


@pytest.mark.late
def test_nothing_of_it_is_left(
    leaving: Leaving, deployed_engine: tuple[Engine, Outputs], operator: Api, api: Api
) -> None:
    engine, outputs = deployed_engine
    namespace, clients = leaving.namespace, leaving.clients
    deadline = time.monotonic() + DONE_SECONDS
    while (job := operator.call("GET", leaving.job).json())["state"] in {"queued", "running"}:
        assert time.monotonic() < deadline, job
        time.sleep(2)
    assert (job["state"], job["error"]) == ("done", None)

    own = keys.namespace_prefix(namespace)
    left = everything(engine, outputs)
    assert [item["PK"]["S"] for item in left if item["PK"]["S"].startswith(own)] == []
    about = [item for item in left if namespace in str(item) or any(client in str(item) for client in clients)]
    assert {item["PK"]["S"] for item in about} == {f"_/JOB#{job['id']}"}
    s3 = engine_client("s3", engine.endpoint)
    listing = s3.list_object_versions(Bucket=outputs.archive_bucket, Prefix=archive_prefix(namespace).rstrip("/"))
    versions = [*listing.get("Versions", []), *listing.get("DeleteMarkers", [])]
    assert [version["Key"] for version in versions] == [leaving.neighbour]

    assert_problem(leaving.as_org.call("GET", "/v1/whoami"), 401, "unauthorized")
    assert_problem(operator.call("GET", f"/v1/orgs/{leaving.org}"), 404, "not-found")
    # The neighbours have noticed nothing, and the name is free again.
    assert api.call("GET", "/v1/whoami").status == 200
    assert operator.call("PUT", f"/v1/orgs/{leaving.org}", {}).status == 201


def _is_client(item: Any) -> bool:
    is_client: bool = item["PK"]["S"].startswith("_/CLIENT#")
    return is_client
