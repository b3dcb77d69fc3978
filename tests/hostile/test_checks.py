"""The judges themselves: an answer that must not be is noticed."""

import json
from typing import Any

import pytest

from tests.hostile.checks import complaints
from tests.hostile.document import place_of
from tests.hostile.furniture import SECRETS
from tests.hostile.fuzz import Fuzz
from tests.hostile.gateway import Answer, decoded_path, event_of
from tests.hostile.generated import Variety, operation
from tests.hostile.product import BASE_URL, Product

PROBLEM = {
    "type": "urn:sluice:problem:invalid-request",
    "title": "Invalid request",
    "status": 400,
    "detail": "entity: is wrong",
    "request_id": "request-7",
    "field": "entity",
}
REFUSAL = {**PROBLEM, "type": "urn:sluice:problem:limit-exceeded", "status": 429, "retry_after_ms": 1500}
WAIT = {"Retry-After": "2", "retry-after-ms": "1500"}


def answered(body: Any, status: int = 400, content_type: str = "application/problem+json", **headers: str) -> Answer:
    content = b"" if body is None else json.dumps(body).encode()
    return Answer(status, {"Content-Type": content_type, **headers}, content)


def told(answer: Answer, method: str = "POST", path: str = "/v1/acquire", *, changed: bool = False) -> list[str]:
    return list(complaints(method, path, answer, changed=changed))


def test_nothing_is_said_about_good_answers() -> None:
    assert told(answered(PROBLEM)) == []
    assert told(answered(REFUSAL, 429, **WAIT), changed=True) == []
    assert told(answered({"lease": None}, 201, "application/json"), changed=True) == []
    nothing_here = {**PROBLEM, "type": "urn:sluice:problem:not-found", "status": 404}
    assert told(answered(nothing_here, 404), path="/v1/nowhere") == []
    not_allowed = {**PROBLEM, "type": "urn:sluice:problem:method-not-allowed", "status": 405}
    assert told(answered(not_allowed, 405, Allow="POST"), "GET") == []


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (answered({**PROBLEM, "status": 500}, 500), "caused 500"),
        (answered(PROBLEM, content_type="application/json"), "content type"),
        (answered({**PROBLEM, "detail": ""}), "lacks"),
        (answered({name: value for name, value in PROBLEM.items() if name != "request_id"}), "lacks"),
        (answered({**PROBLEM, "status": 404}), "says 404"),
        (answered({**PROBLEM, "status": "400"}), "lacks"),
        (answered({**PROBLEM, "type": "about:blank"}), "the type"),
        (answered({**PROBLEM, "type": "urn:sluice:problem:made-up"}), "not documented"),
        (answered({name: value for name, value in PROBLEM.items() if name != "field"}), "name the field"),
        (answered({**PROBLEM, "trace": "x"}), "unknown members"),
        (answered({**PROBLEM, "detail": "Traceback (most recent call last)"}), "internals"),
        (answered({**PROBLEM, "detail": "ns/BUCKET#user#gpt-4#0"}), "internals"),
        (answered({**PROBLEM, "field": "metadata.a.constrained-str"}), "internals"),
        (answered({**PROBLEM, "detail": SECRETS[0]}), "another tenant"),
        (answered({"levels": [{"b_rpm_tk": 1}]}, 201, "application/json"), "attributes"),
        (answered({"items": [{"GSI1PK": "x"}]}, 201, "application/json"), "attributes"),
        (answered(REFUSAL, 429, **{**WAIT, "Retry-After": "1"}), "headers of a refusal"),
        (answered({**REFUSAL, "retry_after_ms": 0}, 429, **WAIT), "try again after 0 ms"),
    ],
)
def test_a_bad_answer_is_noticed(answer: Answer, complaint: str) -> None:
    assert any(complaint in one for one in told(answer)), told(answer)


def test_a_change_is_noticed() -> None:
    assert told(answered(PROBLEM), changed=True) == ["a refused request changed the table"]
    found = answered({"items": []}, 200, "application/json")
    assert told(found, "GET", "/v1/entities", changed=True) == ["a question changed the table"]
    assert told(found, "POST", "/v1/explain", changed=True) == ["a question changed the table"]


def test_what_is_wrong_at_a_place_is_noticed() -> None:
    assert any("where nothing is" in one for one in told(answered(PROBLEM), path="/v1/nowhere"))
    assert any("does not take" in one for one in told(answered(PROBLEM), "GET"))
    not_allowed = {**PROBLEM, "type": "urn:sluice:problem:method-not-allowed", "status": 405}
    assert any("allowed are" in one for one in told(answered(not_allowed, 405, Allow="GET, POST"), "GET"))


class Forged:
    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    def send(self, *_request: object) -> Answer:
        return self.answer


ENTITY: dict[str, Any] = {
    "entity": "e",
    "role": "other",
    "name": None,
    "parent": None,
    "cascade": True,
    "metadata": {},
    "created_at": "2027-01-15T08:00:00.000Z",
    "updated_at": "2027-01-15T08:00:00.000Z",
}


@pytest.mark.parametrize(
    ("body", "status", "content_type"),
    [
        ({**ENTITY, "version": 1}, 200, "application/json"),
        ({**ENTITY, "cascade": "true"}, 200, "application/json"),
        ({"entity": "e"}, 200, "application/json"),
        (ENTITY, 200, "text/plain"),
        (ENTITY, 206, "application/json"),
    ],
)
def test_an_answer_that_is_not_as_documented_is_noticed(body: object, status: int, content_type: str) -> None:
    case = operation(Variety.VALID, "GET", "/v1/entities/{entity}").Case(path_parameters={"entity": "e"})
    good = Fuzz(Forged(answered(ENTITY, 200, "application/json")), BASE_URL)
    good.run(case)
    good.conclude("this test")
    fuzz = Fuzz(Forged(answered(body, status, content_type)), BASE_URL)
    fuzz.run(case)
    with pytest.raises(AssertionError, match=r"SLUICE_FUZZ_SEED=.* python -m pytest 'this test'"):
        fuzz.conclude("this test")


def test_paths_are_found_as_documented() -> None:
    place = place_of("/v1/limits/entities/user/_default_")
    assert place is not None
    assert (place.template, place.valid) == ("/v1/limits/entities/{entity}/{resource}", True)
    unlikely = place_of("/v1/entities/_default_")
    assert unlikely is not None
    assert not unlikely.valid
    assert place_of("/v1/entities/a/b/c") is None
    assert place_of("/v1/entities/") is None
    assert place_of("/v1/entities/a\n") is None


def test_the_gateway_does_to_paths_and_bodies_what_the_real_one_does() -> None:
    assert decoded_path("/v1/%41%2F%25%32%46/%C3%A9%FF") == "/v1/A/%252F/é\ufffd"
    event = event_of("POST", "http://x/v1/a?b=1&b=%32&c", {"Content-Type": "text/html; x"}, b"\xff", "r")
    assert (event["body"], event["isBase64Encoded"]) == ("\ufffd", False)
    assert event["queryStringParameters"] == {"b": "1,2", "c": ""}
    binary = event_of("POST", "http://x/", {"Content-Type": "application/octet-stream"}, b"\xff", "r")
    assert (binary["body"], binary["isBase64Encoded"]) == ("/w==", True)
    bare = event_of("GET", "http://x/", {}, b"", "r")
    assert "body" not in bare
    assert "queryStringParameters" not in bare


def test_a_copy_is_the_same_and_apart(furnished: Product) -> None:
    before = furnished.items_of(furnished.namespace)
    copy = furnished.copied()
    assert copy.items_of(copy.namespace) == before
    assert copy.call("PUT", "/v1/entities/new", {}).status == 201
    assert len(copy.items_of(copy.namespace)) == len(before) + 2
    assert furnished.items_of(furnished.namespace) == before
