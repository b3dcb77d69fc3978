"""Logins, tokens and credentials over the deployed API, and who may not do what."""

import uuid

import pytest

from tests.e2e.api import Answer, Api
from tests.e2e.conftest import ORG
from tests.e2e.test_api import acquire_body, assert_problem


def name(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def made(answer: Answer) -> dict[str, str]:
    assert answer.status == 201, answer.body
    shown: dict[str, str] = answer.json()
    return shown


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/acquire", acquire_body()),
        ("POST", "/v1/leases/release", {"lease": "x"}),
        ("GET", "/v1/limits/system", None),
        ("GET", "/v1/jobs", None),
        ("GET", "/v1/whoami", None),
        ("GET", "/v1/orgs", None),
        ("PUT", f"/v1/orgs/{ORG}", {}),
        ("POST", "/v1/auth/revoke", {"token": "x"}),
    ],
)
def test_nobody_gets_in_without_a_token(nobody: Api, method: str, path: str, body: object) -> None:
    for caller in (nobody, nobody.with_token("x.y.z"), Api(nobody.url, {"x-api-key": "k" * 64})):
        refused = caller.call(method, path, body)
        assert_problem(refused, 401, "unauthorized")
        assert refused.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("path", ["/v1/health", "/v1/ready", "/v1/openapi.json"])
def test_what_is_open_stays_open(nobody: Api, path: str) -> None:
    assert nobody.call("GET", path).status == 200


def test_an_operator_is_no_tenant_and_a_tenant_no_operator(operator: Api, api: Api) -> None:
    assert ORG in [org["org"] for org in operator.call("GET", "/v1/orgs").json()["items"]]
    assert operator.call("POST", "/v1/acquire", acquire_body()).status in {401, 403}
    assert operator.call("GET", "/v1/limits/system").status in {401, 403}
    assert_problem(api.call("GET", "/v1/orgs"), 403, "forbidden")
    assert_problem(api.call("PUT", f"/v1/orgs/{ORG}", {"suspended": True}), 403, "forbidden")
    assert api.call("GET", f"/v1/orgs/{ORG}").json()["suspended"] is False


def test_whoami(api: Api) -> None:
    answer = api.call("GET", "/v1/whoami").json()
    assert (answer["org"], answer["entity"], answer["role"]) == (ORG, ORG, "org")


def test_an_app_keeps_to_its_own(api: Api) -> None:
    first, second, user = name("app"), name("app"), name("user")
    apps = [api.logged_in(made(api.call("PUT", f"/v1/orgs/{ORG}/apps/{app}", {}))) for app in (first, second)]
    per_hour = {"limits": {"rpm": {"capacity": 5, "refill_period_seconds": 3600}}}
    assert api.call("PUT", f"/v1/limits/entities/{first}/chat", per_hour).status == 201
    asked = {"entity": user, "resource": "chat", "consume": {"rpm": 1}}
    # Registered below the app by asking, so what it takes is taken from the app.
    taken = apps[0].call("POST", "/v1/acquire", asked)
    assert [level["entity"] for level in made(taken)["levels"]] == [first], taken.body  # type: ignore[index]
    for method, path in (("GET", f"/v1/entities/{user}"), ("GET", f"/v1/entities/{first}")):
        assert apps[0].call(method, path).status == 200
        assert_problem(apps[1].call(method, path), 404, "not-found")
    assert_problem(apps[1].call("POST", "/v1/acquire", asked), 404, "not-found")
    assert_problem(apps[0].call("PUT", "/v1/limits/system", per_hour), 403, "forbidden")
    assert_problem(apps[0].call("GET", f"/v1/orgs/{ORG}"), 403, "forbidden")


def test_one_org_sees_nothing_of_another(operator: Api, api: Api) -> None:
    other = operator.logged_in(made(operator.call("PUT", f"/v1/orgs/{name('org')}", {})))
    entity = name("entity")
    assert api.call("PUT", f"/v1/entities/{entity}", {}).status == 201
    assert_problem(other.call("GET", f"/v1/entities/{entity}"), 404, "not-found")
    assert_problem(other.call("GET", f"/v1/orgs/{ORG}"), 404, "not-found")
    assert_problem(other.call("GET", f"/v1/orgs/{ORG}/apps"), 404, "not-found")


def test_refreshing_rotates_and_a_copy_ends_the_family(operator: Api, nobody: Api) -> None:
    credentials = made(operator.call("PUT", f"/v1/orgs/{name('org')}", {}))
    login = {key: credentials[key] for key in ("client_id", "client_secret")}
    first = nobody.call("POST", "/v1/auth/token", login).json()
    second = nobody.call("POST", "/v1/auth/refresh", {"refresh_token": first["refresh_token"]})
    assert second.status == 200, second.body
    assert nobody.with_token(second.json()["access_token"]).call("GET", "/v1/whoami").status == 200
    reused = nobody.call("POST", "/v1/auth/refresh", {"refresh_token": first["refresh_token"]})
    assert_problem(reused, 401, "unauthorized")
    later = nobody.call("POST", "/v1/auth/refresh", {"refresh_token": second.json()["refresh_token"]})
    assert_problem(later, 401, "unauthorized")
    wrong = nobody.call("POST", "/v1/auth/token", login | {"client_secret": "sk_" + "x" * 43})
    unknown = nobody.call("POST", "/v1/auth/token", login | {"client_id": "x" * 20})
    for answer in (wrong, unknown):
        assert_problem(answer, 401, "unauthorized")
    same = {"type", "title", "status", "detail"}
    assert {key: wrong.json()[key] for key in same} == {key: unknown.json()[key] for key in same}


def test_a_rotated_secret_without_grace_ends_the_older_one(operator: Api, nobody: Api) -> None:
    org = name("org")
    old = made(operator.call("PUT", f"/v1/orgs/{org}", {}))
    rotated = operator.call("POST", f"/v1/orgs/{org}/credentials/rotate", {"grace_period_hours": 0})
    assert rotated.status == 200, rotated.body
    new = rotated.json()
    assert new["client_id"] == old["client_id"]
    login = {"client_id": old["client_id"], "client_secret": old["client_secret"]}
    assert_problem(nobody.call("POST", "/v1/auth/token", login), 401, "unauthorized")
    assert nobody.logged_in(new).call("GET", "/v1/whoami").status == 200


def test_a_suspended_org_may_do_nothing(operator: Api, nobody: Api) -> None:
    org = name("org")
    credentials = made(operator.call("PUT", f"/v1/orgs/{org}", {"suspended": True}))
    login = {"client_id": credentials["client_id"], "client_secret": credentials["client_secret"]}
    assert_problem(nobody.call("POST", "/v1/auth/token", login), 403, "suspended")
    assert operator.call("PUT", f"/v1/orgs/{org}", {"suspended": False}).status == 200
    assert nobody.logged_in(credentials).call("GET", "/v1/whoami").status == 200
