"""Labels and inference profiles over HTTP, event in and answer out, on moto."""

from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import boto3
import pytest

from sluice.core.identity import Role
from sluice.repository.wire import item_to_wire
from tests.http import (
    APP,
    AS_NOBODY,
    AS_OPERATOR,
    NAMESPACE,
    TABLE,
    Call,
    authorized,
    caller_of,
    deployed,
    items_in_table,
)
from tests.tenancy import tenant_items

LABEL, LABELS = "/v1/labels/premium", "/v1/labels"
PROFILE, PROFILES = "/v1/inference-profiles/premium", "/v1/inference-profiles"
SONNET = "anthropic.claude-sonnet-4-5-20250929-v1:0"
BODY = {"model_id": SONNET}
FULL = {
    **BODY,
    "tier": "high",
    "family": "claude",
    "description": "for the few",
    "input_price_usd_micros_per_1m": 0,
    "output_price_usd_micros_per_1m": 10**12,
}
ARN = f"arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.{SONNET}"
ARNS = [
    ARN,
    "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/abc",
    "arn:aws-us-gov:bedrock:us-gov-west-1:123456789012:application-inference-profile/abc",
    f"arn:aws-us-gov:bedrock:us-gov-west-1:123456789012:inference-profile/us-gov.{SONNET}",
    "arn:aws-cn:bedrock:cn-north-1:123456789012:application-inference-profile/abc",
    "arn:aws-iso-b:bedrock:us-isob-east-1:123456789012:application-inference-profile/abc",
]
AS_APP = {"app": APP}
PUT_PROFILE = {"inference_profile_arn": ARN}


@pytest.fixture
def handler_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    with deployed("control_plane.handler", monkeypatch) as module:
        yield module


@pytest.fixture
def call(handler_module: ModuleType) -> Call:
    return caller_of(handler_module, "GET", LABELS)


def the_app() -> dict[str, str]:
    return authorized(APP, Role.APP)


def besides_audit() -> list[Any]:
    return [item for item in items_in_table() if item["kind"]["S"] != "audit"]


def test_a_label_is_created_replaced_read_and_removed(call: Call) -> None:
    assert call("GET", LABEL).problem == "not-found"
    created = call("PUT", LABEL, FULL)
    times = {name: created.body[name] for name in ("created_at", "updated_at")}
    assert (created.status, created.body) == (201, {"label": "premium", **FULL, **times})
    assert created.body["created_at"] == created.body["updated_at"]
    read = call("GET", LABEL)
    assert (read.status, read.body, read.headers["ETag"]) == (200, created.body, created.headers["ETag"])
    replaced = call("PUT", LABEL, BODY)
    assert replaced.status == 200
    nothing = dict.fromkeys(set(FULL) - set(BODY))
    assert replaced.body == {
        "label": "premium",
        **BODY,
        **nothing,
        "created_at": created.body["created_at"],
        "updated_at": replaced.body["updated_at"],
    }
    assert replaced.headers["ETag"] != created.headers["ETag"]
    removed = call("DELETE", LABEL)
    assert (removed.status, removed.body) == (204, None)
    assert besides_audit() == []
    assert call("DELETE", LABEL).problem == "not-found"


@pytest.mark.parametrize(("app", "query"), [(None, {}), (APP, AS_APP)])
def test_a_profile_is_created_replaced_read_and_removed(call: Call, app: str | None, query: dict[str, str]) -> None:
    assert call("GET", PROFILE, query=query).problem == "not-found"
    created = call("PUT", PROFILE, {**PUT_PROFILE, "description": "of tenant a"}, query=query)
    assert created.status == 201
    assert created.body == {
        "label": "premium",
        "app": app,
        "inference_profile_arn": ARN,
        "description": "of tenant a",
        "created_at": created.body["created_at"],
        "updated_at": created.body["created_at"],
    }
    read = call("GET", PROFILE, query=query)
    assert (read.status, read.body, read.headers["ETag"]) == (200, created.body, created.headers["ETag"])
    assert call("GET", PROFILES, query=query).body == {"items": [created.body], "next_cursor": None}
    other = AS_APP if app is None else {}
    assert call("GET", PROFILE, query=other).problem == "not-found"
    assert call("GET", PROFILES, query=other).body["items"] == []
    replaced = call("PUT", PROFILE, PUT_PROFILE, query=query)
    assert (replaced.status, replaced.body["description"]) == (200, None)
    assert replaced.body["created_at"] == created.body["created_at"]
    removed = call("DELETE", PROFILE, query=query)
    assert (removed.status, removed.body) == (204, None)
    assert besides_audit() == []
    assert call("DELETE", PROFILE, query=query).problem == "not-found"


@pytest.mark.parametrize(("path", "body"), [(LABEL, BODY), (PROFILE, PUT_PROFILE)])
def test_if_match_guards_against_a_version_not_seen(call: Call, path: str, body: Mapping[str, Any]) -> None:
    seen = call("PUT", path, body).headers["ETag"]
    newer = call("PUT", path, body, headers={"if-match": seen}).headers["ETag"]
    for stale in (seen, '"nonsense"', "", f"W/{newer}"):
        for method, sent in (("PUT", body), ("DELETE", None)):
            answer = call(method, path, sent, headers={"if-match": stale})
            assert (answer.status, answer.problem) == (412, "precondition-failed"), stale
    assert call("GET", path).headers["ETag"] == newer
    assert call("PUT", path, body, headers={"if-match": "*"}).status == 200
    listed = call("GET", path).headers["ETag"]
    assert call("DELETE", path, headers={"if-match": f'"x", {listed}'}).status == 204
    assert call("PUT", path, body, headers={"if-match": "*"}).status == 412
    assert besides_audit() == []


@pytest.mark.parametrize("arn", ARNS)
def test_both_forms_are_taken_in_every_partition(call: Call, arn: str) -> None:
    answer = call("PUT", PROFILE, {"inference_profile_arn": arn})
    assert (answer.status, answer.body["inference_profile_arn"]) == (201, arn)


@pytest.mark.parametrize(
    "arn",
    [
        "abc",
        "inference-profile/abc",
        ARN.replace("123456789012", ""),
        ARN.replace("us-east-1", "us-east-1.evil.example"),
        ARN.replace("us-east-1", "us-east-1/../x"),
        ARN.replace(":inference-profile", ":foundation-model"),
        f"{ARN}\n",
        f"{ARN}\u0000",
        f" {ARN}",
        f"{ARN}/more",
        "arn:" * 500,
        "\u0661" * 40,
    ],
)
@pytest.mark.parametrize("query", [{}, AS_APP])
def test_a_malformed_arn_is_refused_by_its_field(call: Call, arn: str, query: dict[str, str]) -> None:
    answer = call("PUT", PROFILE, {"inference_profile_arn": arn}, query=query)
    assert (answer.status, answer.problem) == (400, "invalid-request")
    assert answer.body["field"] == "inference_profile_arn"
    assert items_in_table() == []


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (LABEL, {}, "model_id"),
        (LABEL, {"model_id": None}, "model_id"),
        (LABEL, {"model_id": ""}, "model_id"),
        (LABEL, {"model_id": "a b"}, "model_id"),
        (LABEL, {"model_id": "a\n"}, "model_id"),
        (LABEL, {"model_id": "é"}, "model_id"),
        (LABEL, {"model_id": "m" * 257}, "model_id"),
        (LABEL, {**BODY, "tier": ""}, "tier"),
        (LABEL, {**BODY, "tier": "t" * 129}, "tier"),
        (LABEL, {**BODY, "family": "f" * 129}, "family"),
        (LABEL, {**BODY, "description": "d" * 513}, "description"),
        (LABEL, {**BODY, "input_price_usd_micros_per_1m": -1}, "input_price_usd_micros_per_1m"),
        (LABEL, {**BODY, "input_price_usd_micros_per_1m": 1.5}, "input_price_usd_micros_per_1m"),
        (LABEL, {**BODY, "input_price_usd_micros_per_1m": "5"}, "input_price_usd_micros_per_1m"),
        (LABEL, {**BODY, "output_price_usd_micros_per_1m": 10**12 + 1}, "output_price_usd_micros_per_1m"),
        (LABEL, {**BODY, "output_price_usd_micros_per_1m": True}, "output_price_usd_micros_per_1m"),
        (LABEL, {**BODY, "label": "other"}, "label"),
        ("/v1/labels/-premium", BODY, "label"),
        ("/v1/labels/" + "l" * 129, BODY, "label"),
        (PROFILE, {}, "inference_profile_arn"),
        (PROFILE, {"inference_profile_arn": None}, "inference_profile_arn"),
        (PROFILE, {"inference_profile_arn": ""}, "inference_profile_arn"),
        (PROFILE, {"inference_profile_arn": 5}, "inference_profile_arn"),
        (PROFILE, {"inference_profile_arn": ARN + "x" * 2048}, "inference_profile_arn"),
        (PROFILE, {**PUT_PROFILE, "description": "d" * 513}, "description"),
        (PROFILE, {**PUT_PROFILE, "app": APP}, "app"),
        ("/v1/inference-profiles/-premium", PUT_PROFILE, "label"),
    ],
)
def test_bad_input_is_refused_by_its_field(call: Call, path: str, body: Any, field: str) -> None:
    answer = call("PUT", path, body)
    assert (answer.status, answer.problem, answer.body["field"]) == (400, "invalid-request", field)
    assert items_in_table() == []


@pytest.mark.parametrize("label", ["a", "A-b.c_d:e@f+g", "l" * 128])
def test_the_longest_of_everything_is_taken(call: Call, label: str) -> None:
    body = {
        **FULL,
        "model_id": "!" + "~" * 255,
        "tier": "ü" * 128,
        "family": "ü" * 128,
        "description": "ü" * 512,
    }
    answer = call("PUT", f"/v1/labels/{label}", body)
    assert (answer.status, answer.body["label"]) == (201, label)
    assert call("GET", f"/v1/labels/{label}").body == answer.body


def test_labels_are_listed_page_by_page_for_apps_as_well(call: Call) -> None:
    for name in ("c", "a", "b"):
        assert call("PUT", f"{LABELS}/{name}", BODY).status == 201
    for caller in (None, the_app()):
        first = call("GET", LABELS, query={"limit": "2"}, caller=caller)
        assert [item["label"] for item in first.body["items"]] == ["a", "b"]
        rest = call("GET", LABELS, query={"limit": "2", "cursor": first.body["next_cursor"]}, caller=caller)
        assert [item["label"] for item in rest.body["items"]] == ["c"]
        assert rest.body["next_cursor"] is None
    # A cursor belongs to its list.
    foreign = call("GET", PROFILES, query={"cursor": first.body["next_cursor"]})
    assert (foreign.status, foreign.body["field"]) == (400, "cursor")
    for limit in ("0", "101", "x"):
        assert call("GET", LABELS, query={"limit": limit}).body["field"] == "limit"


def test_definitions_are_the_orgs(call: Call) -> None:
    call("PUT", LABEL, BODY)
    for method, body in (("GET", None), ("PUT", BODY), ("DELETE", None)):
        assert call(method, LABEL, body, caller=the_app()).problem == "forbidden"
    assert call("GET", LABEL).status == 200


def test_an_app_acts_on_itself_and_sees_what_holds_for_all(call: Call) -> None:
    call("PUT", PROFILE, PUT_PROFILE)
    as_app = the_app()
    made = call("PUT", PROFILE, PUT_PROFILE, query=AS_APP, caller=as_app)
    assert (made.status, made.body["app"]) == (201, APP)
    assert call("GET", PROFILE, query=AS_APP, caller=as_app).body == made.body
    assert call("GET", PROFILES, query=AS_APP, caller=as_app).body["items"] == [made.body]
    assert call("GET", PROFILE, caller=as_app).body["app"] is None
    assert [item["app"] for item in call("GET", PROFILES, caller=as_app).body["items"]] == [None]
    for method, body in (("PUT", PUT_PROFILE), ("DELETE", None)):
        answer = call(method, PROFILE, body, caller=as_app)
        assert (answer.status, answer.problem) == (403, "forbidden")
    assert call("DELETE", PROFILE, query=AS_APP, caller=as_app).status == 204
    assert call("GET", PROFILE).status == 200


def test_what_is_another_apps_looks_as_if_it_were_nobodys(call: Call) -> None:
    call("PUT", "/v1/entities/user-1", {"parent": APP})
    for item in tenant_items(NAMESPACE, NAMESPACE, "app-2"):
        boto3.client("dynamodb").put_item(TableName=TABLE, Item=item_to_wire(item))
    other = authorized("app-2", Role.APP)
    for path, method, body in (
        (PROFILE, "GET", None),
        (PROFILE, "PUT", PUT_PROFILE),
        (PROFILE, "DELETE", None),
        (PROFILES, "GET", None),
    ):
        # To the org, what is no app; to an app, whatever is not itself, its own users too.
        told = [call(method, path, body, query={"app": name}) for name in ("nobody", "user-1", "default")]
        told += [call(method, path, body, query={"app": name}, caller=other) for name in (APP, "nobody", "user-1")]
        assert {answer.status for answer in told} == {404}
        assert len({str(answer.body) for answer in told}) == 1


@pytest.mark.parametrize("query", [{"app": "a#b"}, {"app": ""}, {"app": "a/b"}, {"app": "a" * 129}])
def test_an_app_that_can_not_be_is_refused(call: Call, query: dict[str, str]) -> None:
    for path in (PROFILE, PROFILES):
        answer = call("GET", path, query=query)
        assert (answer.status, answer.body["field"]) == (400, "app")


@pytest.mark.parametrize("caller", [AS_NOBODY, AS_OPERATOR])
def test_everybody_else_is_turned_away(call: Call, caller: Mapping[str, str]) -> None:
    for path in (LABEL, LABELS, PROFILE, PROFILES):
        assert call("GET", path, caller=caller).problem == "unauthorized"


def test_changes_are_in_the_audit(call: Call) -> None:
    call("PUT", LABEL, BODY)
    call("PUT", PROFILE, PUT_PROFILE)
    call("PUT", PROFILE, PUT_PROFILE, query=AS_APP, caller=the_app())

    def told(subject: str) -> list[tuple[str, str, str]]:
        items = call("GET", "/v1/audit", query={"entity": subject}).body["items"]
        return [(item["action"], item["target"], item["actor"]) for item in items]

    assert told("$SYSTEM") == [("label.put", "labels/premium", "client-default")]
    assert told("default") == [("inference_profile.put", "inference-profiles/premium", "client-default")]
    assert told(APP) == [("inference_profile.put", f"inference-profiles/premium?app={APP}", f"client-{APP}")]
