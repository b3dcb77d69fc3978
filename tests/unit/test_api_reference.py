"""The committed API reference is what the routes say, and it shows all that a caller must know."""

import re
from functools import cache
from typing import Any

import pytest

from local.api_reference import documents, openapi_document
from local.api_text import reference
from sluice.core import errors
from sluice.core.limits import LIMIT_NAME_PATTERN
from sluice.edge import problems
from sluice.edge.access import ACCESS
from sluice.edge.models import ID_PATTERN
from sluice.edge.requests import BODY_BYTES_MAX, LARGE_BODIES
from sluice.edge.times import TIME_PATTERN

_LIMIT_NAME = f"^{LIMIT_NAME_PATTERN}$"
_SUBJECT = rf"{ID_PATTERN}|^\$SYSTEM$|^\$RESOURCE:{ID_PATTERN[1:]}"
_VIOLATION = errors.Violation("e", "r", "tpm", 2, 1, 10, "system")
_SHORT_OF_MONEY = errors.BudgetViolation("e", "day", "cost", 2, 1, 1, 2, "usd_micros")
_REMEDY = errors.Remedy("label", "small")
_REFUSALS = (
    errors.LimitExceeded([_VIOLATION], 1, 10, []),
    errors.BudgetExceeded([_SHORT_OF_MONEY], 1, [_REMEDY]),
    errors.NeverWithinBudget([_SHORT_OF_MONEY], [_REMEDY]),
    errors.NeverAdmissible("e", "r", "tpm", 2, 1),
    errors.ReserveRequired(["cost"]),
    errors.AllQuotasExceeded(1, 10, [errors.SpentLabel("small", 2, 1)]),
    errors.Contended(10),
    errors.TooManyRequests(10),
    errors.NoLimits("e", "r"),
    errors.Unavailable(),
    errors.Unauthorized(),
)


@cache
def _document() -> dict[str, Any]:
    return openapi_document()


@cache
def _text() -> str:
    return reference(_document())


def _section(title: str) -> str:
    return _text().split(f"\n{title}\n", 1)[1].split("\n## ", 1)[0]


def _rendered(properties: dict[str, Any], schemas: dict[str, Any] | None = None) -> str:
    """The reference of one route with such a body."""
    body = {"type": "object", "properties": properties, "required": []}
    operation = {
        "summary": "Does it",
        "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Sent"}}}},
        "responses": {},
    }
    return reference(
        {"paths": {"/v1/prices": {"put": operation}}, "components": {"schemas": {"Sent": body, **(schemas or {})}}}
    )


def test_the_api_reference_is_not_stale() -> None:
    for path, text in documents().items():
        assert path.read_text() == text, f"{path.name} is stale: run `make docs`"


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        ({"type": "integer", "minimum": 1.0, "maximum": 9.0}, "integer 1..9"),
        ({"type": "integer", "minimum": 1.0}, "integer from 1"),
        ({"type": "integer", "maximum": 9.0}, "integer up to 9"),
        ({"type": "string", "maxLength": 40}, "string of up to 40 characters"),
        ({"type": "string", "minLength": 1, "maxLength": 40}, "string of 1..40 characters"),
        ({"type": "string", "pattern": "^[a-c]{2}$"}, "string `^[a-c]{2}$`"),
        ({"type": "string", "pattern": f"^{'(ab)' * 30}$", "maxLength": 9}, "string of up to 9 characters"),
        ({"type": "string", "pattern": TIME_PATTERN, "maxLength": 40}, "RFC 3339 time"),
        ({"type": "string", "pattern": _SUBJECT}, "id or `$SYSTEM` or `$RESOURCE:{id}`"),
        ({"type": "integer", "maximum": 65536.0}, "integer up to 65,536"),
        ({"type": "string", "enum": ["a", "b"]}, "`a` or `b`"),
        ({"type": "integer", "const": 202}, "`202`"),
        ({"type": "array", "minItems": 1, "maxItems": 5, "items": {"type": "string"}}, "list (1..5) of string"),
        ({"type": "array", "maxItems": 5, "items": {"type": "string"}}, "list (up to 5) of string"),
        (
            {
                "anyOf": [
                    {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
                    {"type": "null"},
                ]
            },
            "list of (integer or null) or null",
        ),
        (
            {
                "type": "object",
                "maxProperties": 3,
                "propertyNames": {"minLength": 1, "maxLength": 64},
                "additionalProperties": {"type": "string"},
            },
            "map (up to 3) of name of 1..64 characters to string",
        ),
        (
            {"type": "object", "minProperties": 1, "patternProperties": {_LIMIT_NAME: {"type": "integer"}}},
            "map (from 1) of limit name to integer",
        ),
        ({"type": "integer", "default": 60}, "integer, default `60`"),
    ],
)
def test_bounds_are_shown(schema: dict[str, Any], shown: str) -> None:
    assert f"| `x` | {shown} |" in _rendered({"x": schema})


def test_the_fields_of_a_nested_object_have_rows_and_meanings_of_their_own() -> None:
    inner = {
        "type": "object",
        "description": "Its own\n\nwords.",
        "properties": {"a": {"type": "integer", "description": "one | two"}, "b": {"type": "string"}},
        "required": ["a"],
    }
    reference_to = {"$ref": "#/components/schemas/Inner"}
    text = _rendered(
        {
            "one": {"anyOf": [reference_to, {"type": "null"}], "description": "if any"},
            "many": {"type": "array", "items": reference_to},
            "named": {"type": "object", "additionalProperties": reference_to},
        },
        {"Inner": inner},
    )
    assert "| `one` | object or null |  | if any. Its own words. |" in text
    assert "| `one.a` | integer | yes | one \\| two |" in text
    assert "| `many[].b` | string |  |  |" in text
    assert "| `named.<name>.a` | integer | yes | one \\| two |" in text
    assert "# Inner" not in text


def test_a_large_object_that_stands_in_many_places_is_shown_once() -> None:
    inner = {"type": "object", "properties": {name: {"type": "integer"} for name in "abcdef"}, "required": ["a"]}
    reference_to = {"$ref": "#/components/schemas/Inner"}
    text = _rendered({"one": reference_to, "other": {"type": "array", "items": reference_to}}, {"Inner": inner})
    assert "| `one` | [Inner](#inner) |" in text
    assert "| `other` | list of [Inner](#inner) |" in text
    assert text.count("| `a` | integer | yes |") == 1
    assert "\n### Inner\n" in text


def test_every_link_leads_somewhere() -> None:
    headings = {re.sub(r"[^a-z0-9 _-]", "", line.lower()).replace(" ", "-") for line in re.findall("#+ (.*)", _text())}
    linked = set(re.findall(r"\]\(#([^)]*)\)", _text()))
    assert linked
    assert linked <= headings


def test_each_field_of_each_object_is_there_with_its_description() -> None:
    text = " ".join(_text().replace("\\|", "|").split())
    for name, model in _document()["components"]["schemas"].items():
        for field, part in model.get("properties", {}).items():
            assert re.search(rf"[`.]{field}`", text), f"{name}.{field}"
            assert " ".join(part.get("description", "").split()) in text, f"{name}.{field}"


def test_each_route_says_who_may_call_it() -> None:
    assert _text().count("\nWho: ") == len(ACCESS)
    assert "\nWho: anybody\n" in _section("## GET /v1/health")
    assert "\nWho: operator\n" in _section("## GET /v1/orgs")
    assert "\nWho: operator, org (its own)\n" in _section("## GET /v1/orgs/{org}")
    assert "\nWho: org, app (its own subtree)\n" in _section("## POST /v1/acquire")
    assert "\nWho: org\n" in _section("## PUT /v1/budgets/{entity}")


def test_what_a_route_says_about_itself_is_in_both_documents() -> None:
    settle = _document()["paths"]["/v1/leases/settle"]["post"]["description"]
    assert "Without it a hold stays open for the report that follows." in settle.replace("\n", " ")
    assert "Without it a hold stays open" in _section("## POST /v1/leases/settle").replace("\n", " ")


def test_the_head_names_what_a_body_may_have() -> None:
    head = _text().split("\n## ", 1)[0]
    for figure in (BODY_BYTES_MAX, *LARGE_BODIES.values()):
        assert f"{figure:,}" in head
    assert all(path in head for path in LARGE_BODIES)


@pytest.mark.parametrize("error", _REFUSALS, ids=lambda error: type(error).__name__)
def test_members_and_headers_of_problems_are_in_the_table(error: errors.SluiceError) -> None:
    problem = problems.problem_of(error)
    parts = [part for value in problem.members.values() if isinstance(value, list) for part in value]
    inner = {name for part in parts if isinstance(part, dict) for name in part}
    assert {*problem.members, *inner, *problem.headers} - {"kind", "value"} <= _told(problem.kind)


def _told(kind: str) -> set[str]:
    """The names in the row of a kind, and in those rows that it refers to."""
    rows = [line for line in _text().splitlines() if f"`{kind}`" in line[: line.find("|", 1)]]
    assert len(rows) == 1, kind
    named = set(re.findall(r"`([^`]+)`", rows[0])) - {kind}
    return named | (_told("budget-exceeded") if "budget-exceeded" in named else set())
