"""Every kind of bad input that the contract names: the answer says what is wrong, and nothing is changed."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from sluice.core.limits import AMOUNT_MAX
from sluice.core.snapshots import Interval, SnapshotName, Window, join, starts_ms
from sluice.repository.snapshots import count
from tests.hostile.bad import Bad
from tests.hostile.furniture import APP, LONER, PURGED_ORG, STRANGER, TEAM, USER, Known
from tests.hostile.gateway import Answer
from tests.hostile.product import FOREIGN_NAMESPACE, NAMESPACE, Product

ENTITY = "/v1/entities/{}"
LEVELS = ("/v1/limits/system", "/v1/limits/resources/gpt-4", f"/v1/limits/entities/{LONER}/_default_")
LISTS = (
    *("/v1/entities", "/v1/resources", "/v1/jobs", f"/v1/entities/{TEAM}/children", f"/v1/entities/{USER}/buckets"),
    *(
        "/v1/orgs",
        f"/v1/orgs/{NAMESPACE}/apps",
        "/v1/resources/gpt-4/usage",
        f"/v1/entities/{USER}/usage?resource=gpt-4",
    ),
    *("/v1/resources/gpt-4/capacity", "/v1/limits/entities?resource=gpt-4", f"/v1/audit?entity={TEAM}"),
    *("/v1/labels", "/v1/inference-profiles", f"/v1/inference-profiles?app={APP}", f"/v1/events?entity={USER}"),
)
OWN_ORG = f"/v1/orgs/{NAMESPACE}"
OWN_APP = f"{OWN_ORG}/apps/{APP}"
VERBS: dict[str, dict[str, Any]] = {"settle": {"actual": {}}, "adjust": {"delta": {"rpm": 1}}, "release": {}}
LIMIT = {"capacity": 10, "refill_period_seconds": 60}
FIFTY = {f"l{number}": LIMIT for number in range(50)}
ACQUIRE = {"entity": USER, "resource": "gpt-4", "consume": {"rpm": 1}}


def missing(entity: str) -> list[Bad]:
    found = [Bad(method, ENTITY.format(entity), 404, "not-found") for method in ("GET", "DELETE")]
    found += [Bad("GET", f"/v1/entities/{entity}/{part}", 404, "not-found") for part in ("children", "buckets")]
    found += [Bad(method, f"/v1/limits/entities/{entity}/gpt-4", 404, "not-found") for method in ("GET", "DELETE")]
    return [*found, Bad("PUT", ENTITY.format("x"), 400, "invalid-request", "parent", {"parent": entity})]


@pytest.mark.parametrize("bad", [*missing("nobody-knows-it"), *missing(STRANGER)], ids=str)
def test_an_unknown_or_foreign_entity(bad: Bad, refused: Callable[[Bad], Answer]) -> None:
    refused(bad)


def test_a_foreign_entity_is_answered_as_one_that_is_not_there(product: Product) -> None:
    for path in ("", "/children", "/buckets"):
        foreign, unknown = (product.call("GET", f"/v1/entities/{name}{path}") for name in (STRANGER, "unheard-of"))
        assert foreign == unknown
    lists = ("/v1/entities", "/v1/resources/gpt-4/capacity", "/v1/limits/entities?resource=gpt-4")
    assert all(STRANGER.encode() not in product.call("GET", path).body for path in lists)
    assert product.call("GET", f"/v1/audit?entity={STRANGER}").json()["items"] == []


def test_a_foreign_job_is_not_there(known: Known, refused: Callable[[Bad], Answer]) -> None:
    assert known.foreign is not None
    refused(Bad("GET", f"/v1/jobs/{known.foreign.jobs[0]}", 404, "not-found"))


@pytest.mark.parametrize("parent", [TEAM, USER])
def test_an_entity_can_not_stand_above_itself(parent: str, refused: Callable[[Bad], Answer]) -> None:
    refused(Bad("PUT", ENTITY.format(TEAM), 400, "invalid-request", "parent", {"parent": parent}))


def test_a_chain_has_an_end(product: Product, refused: Callable[[Bad], Answer]) -> None:
    """The org, the team, the user, and one more."""
    assert product.call("PUT", ENTITY.format("fourth"), {"parent": USER}).status == 201
    refused(Bad("PUT", ENTITY.format("fifth"), 400, "invalid-request", "parent", {"parent": "fourth"}))


def bad_leases(known: Known) -> dict[str, tuple[str, int, str]]:
    """The lease, and how it is refused."""
    assert known.foreign is not None
    expired, closed, opened = known.leases[:3]
    flipped = opened[:20] + ("A" if opened[20] != "A" else "B") + opened[21:]
    invalid = {
        "forged": flipped,
        "cut": opened[:-1],
        "cut in half": opened[: len(opened) // 2],
        "prolonged": opened + "AAAA",
        "of another tenant": known.foreign.leases[2],
        "a cursor": known.cursors[0],
        "empty": "",
        "none": "null",
        "too long": opened * 100,
        "not ASCII": opened + "é",
        "with a null": opened + "\x00",
    }
    return {
        **{name: (lease, 400, "invalid-lease") for name, lease in invalid.items()},
        "expired": (expired, 410, "lease-expired"),
        "closed": (closed, 409, "lease-closed"),
    }


@pytest.mark.parametrize("verb", VERBS)
def test_a_lease_that_is_not_good(verb: str, known: Known, refused: Callable[[Bad], Answer]) -> None:
    invalid: set[bytes] = set()
    for name, (lease, status, kind) in bad_leases(known).items():
        if (verb, name) == ("release", "closed"):
            continue  # it was released: the same again is answered the same
        blamed = "lease" if status == 400 else None
        body = {"lease": lease, **VERBS[verb]}
        answer = refused(Bad("POST", f"/v1/leases/{verb}", status, kind, blamed, body, {"idempotency-key": name}))
        if status == 400:
            invalid.add(answer.body)
    assert len(invalid) == 1, "nobody is told what is wrong with a lease"


@pytest.mark.parametrize("key", [None, "", "k" * 129, "a\tb", "é"])
def test_an_adjustment_without_a_key(key: str | None, known: Known, refused: Callable[[Bad], Answer]) -> None:
    body = {"lease": known.leases[2], "delta": {"rpm": 1}}
    headers = {} if key is None else {"idempotency-key": key}
    refused(Bad("POST", "/v1/leases/adjust", 400, "invalid-request", "idempotency-key", body, headers))


@pytest.mark.parametrize("tag", ['"1-1"', '"', "", 'W/"1800000000000-1"', "1800000000000-1", "* *", "null"])
@pytest.mark.parametrize("method", ["PUT", "DELETE"])
@pytest.mark.parametrize("path", [ENTITY.format(USER), *LEVELS, OWN_ORG, OWN_APP])
def test_a_version_that_is_not_the_stored_one(
    path: str, method: str, tag: str, refused: Callable[[Bad], Answer]
) -> None:
    body = None if method == "DELETE" else {"limits": {"rpm": LIMIT}} if "limits" in path else {"name": "x"}
    refused(Bad(method, path, 412, "precondition-failed", "if-match", body, {"if-match": tag}))


@pytest.mark.parametrize("path", LISTS)
def test_a_cursor_that_is_not_of_this_list(path: str, known: Known, refused: Callable[[Bad], Answer]) -> None:
    assert known.foreign is not None
    first = known.cursors[0]
    flipped = first[:-1] + ("A" if first[-1] != "A" else "Q")
    for cursor in (flipped, first[:-4], first + "A", "x", "null", known.leases[2], *known.foreign.cursors):
        target = f"{path}{'&' if '?' in path else '?'}cursor={cursor}"
        refused(Bad("GET", target, 400, "invalid-request", "cursor"))


BAD_LIMITS: dict[str, list[dict[str, Any]]] = {
    "limits.rpm.capacity": [{**LIMIT, "capacity": capacity} for capacity in (0, -1, AMOUNT_MAX + 1, 1.5, "10", None)],
    "limits.rpm.burst": [{**LIMIT, "burst": burst} for burst in (9, 0, AMOUNT_MAX + 1)],
    "limits.rpm.refill_period_seconds": [
        {**LIMIT, "refill_period_seconds": period} for period in (0, -1, 31_536_001, 10**400)
    ],
    "limits.rpm.refill_amount": [{**LIMIT, "refill_amount": amount} for amount in (0, AMOUNT_MAX + 1)],
}
OF_ONE = [({"rpm": limit}, blamed) for blamed, limits in BAD_LIMITS.items() for limit in limits]
OF_MANY: list[tuple[object, str]] = [
    (FIFTY, "limits"),
    ([], "limits"),
    ({"wcu": LIMIT}, "limits.wcu"),
    ({"RPM": LIMIT}, "limits.RPM"),
    ({"": LIMIT}, "limits."),
    ({"a" * 33: LIMIT}, f"limits.{'a' * 33}"),
]


@pytest.mark.parametrize("path", LEVELS)
def test_limits_that_can_not_be(path: str, refused: Callable[[Bad], Answer]) -> None:
    for limits, blamed in (*OF_ONE, *OF_MANY):
        refused(Bad("PUT", path, 400, "invalid-request", blamed, {"limits": limits}))


@pytest.mark.parametrize("path", ["/v1/acquire", "/v1/explain"])
def test_limits_of_a_call_that_can_not_be(path: str, refused: Callable[[Bad], Answer]) -> None:
    for limits, blamed in (*OF_ONE, *OF_MANY):
        refused(Bad("POST", path, 400, "invalid-request", blamed, {**ACQUIRE, "limits": limits}))
    for consume in (dict.fromkeys(FIFTY, 1), {}):
        refused(Bad("POST", path, 400, "invalid-request", "consume", {**ACQUIRE, "consume": consume}))
    for amount in (-1, AMOUNT_MAX + 1, 0.5, "1", None, True):
        refused(Bad("POST", path, 400, "invalid-request", "consume.rpm", {**ACQUIRE, "consume": {"rpm": amount}}))


@pytest.mark.parametrize(
    "entity", ["", "-a", "a b", "a/b", "a#b", "a%23", "é", "a" * 129, "_default_", "$SYSTEM", "a\n"]
)
def test_ids_that_can_not_be(entity: str, refused: Callable[[Bad], Answer]) -> None:
    refused(Bad("POST", "/v1/acquire", 400, "invalid-request", "entity", {**ACQUIRE, "entity": entity}))
    refused(Bad("POST", "/v1/acquire", 400, "invalid-request", "resource", {**ACQUIRE, "resource": entity}))
    refused(Bad("PUT", ENTITY.format(USER), 400, "invalid-request", "parent", {"parent": entity}))


BAD_SETTINGS: dict[str, list[Any]] = {
    "name": ["", "n" * 129, 1],
    "suspended": ["true", 1],
    "model_ordering": [[], [f"l{number}" for number in range(21)], "a", {}],
    "model_ordering.0": [[""], [None], ["a/b"], ["x" * 129]],
    "quotas": [[], {f"l{number}": 1 for number in range(101)}],
    "quotas.a": [{"a": -1}, {"a": 10**15 + 1}, {"a": 0.5}, {"a": "1"}, {"a": True}],
    "quotas.a/b": [{"a/b": 1}],
    "tight_mode_threshold_pct": [0, 100, 1.5, "95"],
    "refresh_interval_normal_secs": [9, 3601],
    "refresh_interval_tight_secs": [9, 3601],
}
BAD_SETTINGS_OF_ORGS: dict[str, list[Any]] = {
    **BAD_SETTINGS,
    "timezone": ["", "utc", "Europe/berlin", "../UTC", "UTC\x00", "/etc/localtime", "x" * 65, 1],
    "quota_scope": ["org", "", 1],
    "counter_shards": [0, 65, 7, "8"],
    "auto_register_entities": ["true"],
}


@pytest.mark.parametrize(("path", "settings"), [(OWN_ORG, BAD_SETTINGS_OF_ORGS), (OWN_APP, BAD_SETTINGS)])
def test_settings_that_can_not_be(path: str, settings: dict[str, list[Any]], refused: Callable[[Bad], Answer]) -> None:
    for blamed, values in settings.items():
        for value in values:
            body = {blamed.partition(".")[0]: value}
            refused(Bad("PUT", path, 400, "invalid-request", blamed, body))
    twice = {"model_ordering": ["a", "a"], "quotas": {"a": 1}}
    refused(Bad("PUT", path, 400, "invalid-request", "model_ordering", twice))
    refused(Bad("PUT", path, 400, "invalid-request", "quotas.a", {"model_ordering": ["a"]}))


@pytest.mark.parametrize("path", [OWN_ORG, OWN_APP])
def test_a_grace_that_can_not_be(path: str, refused: Callable[[Bad], Answer]) -> None:
    for hours in (-1, 169, 0.5, "24", None, True):
        body = {"grace_period_hours": hours}
        refused(Bad("POST", f"{path}/credentials/rotate", 400, "invalid-request", "grace_period_hours", body))


@pytest.mark.parametrize(
    ("path", "good"),
    [
        ("/v1/auth/token", {"client_id": "x", "client_secret": "y"}),
        ("/v1/auth/refresh", {"refresh_token": "x"}),
        ("/v1/auth/revoke", {"token": "x"}),
    ],
)
def test_credentials_that_can_not_be(path: str, good: dict[str, str], refused: Callable[[Bad], Answer]) -> None:
    values: list[Any] = ["", "x" * 5000, 1, None, [], "\ud800"]
    for blamed in good:
        for value in values:
            refused(Bad("POST", path, 400, "invalid-request", blamed, {**good, blamed: value}))
        missing = {name: value for name, value in good.items() if name != blamed}
        refused(Bad("POST", path, 400, "invalid-request", blamed, missing))


def test_whatever_is_wrong_with_credentials_is_told_alike(known: Known, refused: Callable[[Bad], Answer]) -> None:
    """Whose client it is, whether there is one, and whether a secret once was good."""
    identity = known.identity
    assert identity is not None
    (own, of_org, foreign, nobody), (secret, of_org_secret, _ending, ended, guessed) = (
        identity.client_ids,
        identity.client_secrets,
    )
    pairs = [(own, ended), (own, guessed), (own, of_org_secret), (of_org, secret), (foreign, secret), (nobody, secret)]
    logins = [{"client_id": client, "client_secret": wrong} for client, wrong in pairs]
    _good, used, expired, access, cut = identity.refresh_tokens
    refreshes = [{"refresh_token": token} for token in (used, expired, access, cut)]
    answers = {refused(Bad("POST", "/v1/auth/token", 401, "unauthorized", body=body)).body for body in logins}
    answers |= {refused(Bad("POST", "/v1/auth/refresh", 401, "unauthorized", body=body)).body for body in refreshes}
    assert len(answers) == 1


@pytest.mark.parametrize("org", [FOREIGN_NAMESPACE, "nobody"])
def test_an_unknown_or_foreign_org(org: str, refused: Callable[[Bad], Answer]) -> None:
    """For an org's token they are the same."""
    path = f"/v1/orgs/{org}"
    for method, target, body in (
        ("GET", path, None),
        ("GET", f"{path}/apps", None),
        ("GET", f"{path}/apps/{APP}", None),
        ("PUT", f"{path}/apps/{APP}", {}),
        ("DELETE", f"{path}/apps/{APP}", None),
        ("POST", f"{path}/credentials/rotate", {}),
        ("POST", f"{path}/apps/{APP}/credentials/rotate", {}),
    ):
        refused(Bad(method, target, 404, "not-found", body=body))


def test_an_org_that_is_being_purged(refused: Callable[[Bad], Answer]) -> None:
    path = f"/v1/orgs/{PURGED_ORG}"
    for method, target, body in (
        ("GET", path, None),
        ("PUT", path, {}),
        ("PUT", f"{path}/apps/{APP}", {}),
        ("POST", f"{path}/credentials/rotate", {}),
    ):
        refused(Bad(method, target, 409, "in-use", body=body))


@pytest.mark.parametrize("app", [USER, NAMESPACE])
def test_an_entity_is_no_app(app: str, refused: Callable[[Bad], Answer]) -> None:
    path = f"{OWN_ORG}/apps/{app}"
    refused(Bad("PUT", path, 409, "id-taken", body={}))
    refused(Bad("GET", path, 404, "not-found"))
    refused(Bad("DELETE", path, 404, "not-found"))
    refused(Bad("POST", f"{path}/credentials/rotate", 404, "not-found", body={}))


@pytest.mark.parametrize("entity", [NAMESPACE, APP])
def test_what_an_org_or_an_app_is_made_of_is_not_removed_alone(entity: str, refused: Callable[[Bad], Answer]) -> None:
    refused(Bad("DELETE", ENTITY.format(entity), 409, "in-use"))


def test_a_used_key_with_another_body_registers_nobody(product: Product, refused: Callable[[Bad], Answer]) -> None:
    headers = {"idempotency-key": "k"}
    assert product.call("POST", "/v1/acquire", ACQUIRE, headers).status == 201
    before = product.changes
    body = {**ACQUIRE, "entity": "newcomer"}
    refused(Bad("POST", "/v1/acquire", 422, "idempotency-mismatch", "idempotency-key", body, headers))
    assert product.changes == before


def test_a_cursor_of_usage_behind_the_end_of_a_shorter_range(product: Product) -> None:
    """Hole: the table refuses bounds that cross, and takes them for our fault."""
    asked = f"/v1/entities/{USER}/usage?resource=gpt-4&limit=3&from=2020-01-01T00:00:00Z&to=2020-01-01T0{{}}:00:00Z"
    cursor = product.call("GET", asked.format(5)).json()["next_cursor"]
    answer = product.call("GET", f"{asked.format(1)}&cursor={cursor}")
    assert (answer.status, answer.json()) == (200, {"items": [], "next_cursor": None})


@pytest.mark.parametrize("range_", ["", "&from={0}T06:00:00Z&to={0}T07:00:00Z", "&from={0}T00:00:00Z&to={0}T01:00:00Z"])
def test_a_cursor_of_a_range_that_moved_on(product: Product, range_: str) -> None:
    """Hole: the table refuses a place outside of the bounds that moved, and takes it for our fault."""
    now_ms = product.clock.now_ms
    for hours in (23, 22, 21):
        at_ms = starts_ms(Window.HOUR, now_ms - hours * 3_600_000)
        joined = join({}, {0: [Interval(1, 0, {}, 7, {"rpm": 7_000})]})
        assert joined is not None
        name = SnapshotName(NAMESPACE, USER, "gpt-4", None, Window.HOUR, at_ms)
        product.services.store.update(count(name, {}, joined, at_ms), repeatable=True)
    path = "/v1/resources/gpt-4/usage?limit=1"
    cursor = product.call("GET", path).json()["next_cursor"]
    product.wait(2 * 3_600_000)
    day = datetime.fromtimestamp(now_ms / 1000, UTC).date()
    answer = product.call("GET", f"{path}&cursor={cursor}{range_.format(day)}")
    assert answer.status == 200


def test_an_entity_that_is_called_as_a_route_ends(product: Product) -> None:
    """Hole: its budget can neither be put nor read, as there is POST /v1/budgets/refresh."""
    assert product.call("PUT", "/v1/entities/refresh", {}).status == 201
    assert product.call("PUT", "/v1/budgets/refresh", {"day_tokens": 5}).status == 201
    assert product.call("GET", "/v1/budgets/refresh").json()["entity"] == "refresh"
    assert product.call("POST", "/v1/budgets/refresh/refresh").status == 202
    assert product.call("POST", "/v1/budgets/refresh").status == 202
    assert product.call("PATCH", "/v1/budgets/refresh").status == 405
    assert product.call("DELETE", "/v1/budgets/refresh").status == 204
