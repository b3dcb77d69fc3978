"""The OpenAPI document as it is tested: what it leaves open in answers is closed, and known values are likely."""

import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import schemathesis
from hypothesis import strategies as st

from local.api_reference import openapi_document
from sluice.core.limits import LIMIT_NAME_PATTERN
from sluice.edge.models import ID_PATTERN
from tests.hostile.furniture import APPS, ENTITIES, LEGACY_NAMESPACES, LIMIT_NAMES, ORGS, RESOURCES, TIMEZONES, Known

Schema = dict[str, Any]

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_AMOUNT_LIKELY: Final = 3000
_ID: Final = st.from_regex(ID_PATTERN, fullmatch=True)
_PRINTABLE: Final = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=40)
_FORMATS: Final = {
    "entity": _ID,
    "parent": _ID,
    "resource": _ID,
    "job": _ID,
    "lease": st.text(max_size=40),
    "cursor": _PRINTABLE,
    "if-match": _PRINTABLE,
    "legacy_namespace": st.from_regex(r"[A-Za-z0-9_-]{0,64}", fullmatch=True),
    "org": _ID,
    "app": _ID,
    "timezone": st.text(min_size=1, max_size=40),
    "client_id": st.text(min_size=1, max_size=40),
    "client_secret": st.text(min_size=1, max_size=40),
    "token": st.text(min_size=1, max_size=40),
    "refresh_token": st.text(min_size=1, max_size=40),
}


@dataclass(frozen=True, slots=True)
class Place:
    """What a path stands for. `methods`: those that it takes. `valid`: every part of it is as documented."""

    template: str
    methods: frozenset[str]
    valid: bool


@cache
def closed_document() -> Schema:
    """An answer has no member that the document does not name."""
    document = deepcopy(openapi_document())
    for schema in document["components"]["schemas"].values():
        if "properties" in schema:
            schema.setdefault("additionalProperties", False)
    return document


@cache
def likely_document() -> Schema:
    """Allows less than the closed one, so that more of what is generated is about something that exists."""
    document = deepcopy(closed_document())
    for operations in document["paths"].values():
        for operation in operations.values():
            for parameter in operation.get("parameters", []):
                parameter["schema"] = _likely(parameter["schema"], parameter["name"])
    for schema in document["components"]["schemas"].values():
        for name, part in schema.get("properties", {}).items():
            schema["properties"][name] = _likely(part, name)
    return document


def register_formats(known: Known) -> None:
    """From now on, the likely document makes likely what is known here."""
    identity = known.identity
    values: dict[str, tuple[str, ...]] = {
        "entity": ENTITIES,
        "parent": ENTITIES,
        "resource": RESOURCES,
        "lease": known.leases,
        "cursor": known.cursors,
        "if-match": known.etags,
        "job": known.jobs,
        "legacy_namespace": LEGACY_NAMESPACES,
        "timezone": TIMEZONES,
    }
    if identity is not None:
        values |= {
            "org": ORGS,
            "app": APPS,
            "client_id": identity.client_ids,
            "client_secret": identity.client_secrets,
            "token": identity.tokens,
            "refresh_token": identity.refresh_tokens,
        }
    for name, otherwise in _FORMATS.items():
        likely = st.one_of(st.sampled_from(values[name]), otherwise) if name in values else otherwise
        schemathesis.openapi.format(f"known-{name}", likely)


def place_of(path: str) -> Place | None:
    """None: there is nothing at this path. `path`: as a function is given it."""
    if _CONTROL.search(path):
        return None
    for template, operations in closed_document()["paths"].items():
        found = re.fullmatch(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", template), path)
        if found is not None:
            patterns = _path_patterns(next(iter(operations.values())))
            valid = all(re.search(patterns[name], value) for name, value in found.groupdict().items())
            return Place(template, frozenset(method.upper() for method in operations), valid)
    return None


def documented_kinds(template: str, method: str, status: int) -> frozenset[str]:
    """The kinds of problems that an operation may answer with this status."""
    responses = closed_document()["paths"][template][method.lower()]["responses"]
    described: str = responses.get(str(status), {}).get("description", "")
    return frozenset(described.split(", "))


def operation_labels() -> list[tuple[str, str]]:
    """Method and path of every operation."""
    return [(method.upper(), path) for path, operations in closed_document()["paths"].items() for method in operations]


def _path_patterns(operation: Schema) -> Mapping[str, str]:
    return {
        parameter["name"]: parameter["schema"]["pattern"]
        for parameter in operation.get("parameters", [])
        if parameter["in"] == "path"
    }


def _likely(schema: Any, name: str) -> Any:
    """A string gets a format, by which `register_formats` says what to generate; a map gets the known names."""
    if not isinstance(schema, dict):
        return schema
    if "anyOf" in schema:
        return {**schema, "anyOf": [_likely(part, name) for part in schema["anyOf"]]}
    if f"^{LIMIT_NAME_PATTERN}$" in schema.get("patternProperties", {}):
        return _with_known_limits(schema)
    return {**schema, "format": f"known-{name}"} if schema.get("type") == "string" and name in _FORMATS else schema


def _with_known_limits(schema: Schema) -> Schema:
    likely = deepcopy(schema)
    (value,) = likely.pop("patternProperties").values()
    if value.get("type") == "integer":
        value |= {"minimum": max(value["minimum"], -_AMOUNT_LIKELY), "maximum": _AMOUNT_LIKELY}
    return {**likely, "properties": {limit: deepcopy(value) for limit in LIMIT_NAMES}}
