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
from sluice.edge.models import ID_PATTERN, REGION_PATTERN
from tests.hostile.furniture import (
    APPS,
    ENTITIES,
    LABELS,
    LEGACY_NAMESPACES,
    LIMIT_NAMES,
    MODELS,
    ORGS,
    PROFILE_ARNS,
    REGIONS,
    REQUEST_IDS,
    RESOURCES,
    TIMEZONES,
    Known,
)

Schema = dict[str, Any]

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_AMOUNT_LIKELY: Final = 3000
_ID: Final = st.from_regex(ID_PATTERN, fullmatch=True)
_PRINTABLE: Final = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=40)
_DAY: Final = st.dates().map(str)
_TIME: Final = st.datetimes().map(lambda moment: f"{moment:%Y-%m-%dT%H:%M:%S}Z".rjust(20, "0"))
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
    "label": _ID,
    "model_id": _PRINTABLE.filter(bool),
    "region": st.from_regex(REGION_PATTERN, fullmatch=True),
    "inference_profile_arn": st.text(min_size=1, max_size=80),
    "request_id": st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=40),
    "day": _DAY,
    "from_day": _DAY,
    "occurred_at": _TIME,
    "until": _TIME,
}
_REFUSED_MOSTLY: Final = (
    *("model_id", "lease", "occurred_at", "day", "pricing"),
    *("cache_read_tokens", "cache_write_tokens", "cache_write_1h_tokens"),
)


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
    schemas = document["components"]["schemas"]
    schemas["QuoteBody"] = {"anyOf": [_by_label(schemas["QuoteBody"]), schemas["QuoteBody"]]}
    # In a batch each event is judged on its own: there they may be of every kind.
    events = schemas["UsageBatchBody"]["properties"]["events"]
    events["items"] = {"anyOf": [events["items"], schemas["UsageBody"]]}
    schemas["UsageBody"] = _by_label(schemas["UsageBody"])
    # Most columns that are generated would have no price at all, and most long calls none of their own.
    for name in ("long_from_tokens", "long_standard", "long_batch"):
        del schemas["PriceBody"]["properties"][name]
    _require(schemas["ColumnBody"], "input_usd_micros_per_1m")
    # Most reserves would say two things at once, or more than any budget has.
    for name in ("label", "model_id", "input_tokens", "max_output_tokens", "region"):
        del schemas["ReserveBody"]["properties"][name]
    _require(schemas["ReserveBody"], "cost_usd_micros")
    schemas["ReserveBody"]["properties"]["cost_usd_micros"]["maximum"] = _AMOUNT_LIKELY
    schemas["AcquireBody"]["properties"]["consume"]["minProperties"] = 1
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
        "label": LABELS,
        "model_id": MODELS,
        "region": REGIONS,
        "inference_profile_arn": PROFILE_ARNS,
        "request_id": REQUEST_IDS,
        "day": known.days,
        "from_day": known.days,
        "occurred_at": known.times,
        "until": known.times,
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
    # The most of it spelled out: what it names is no entity then.
    for template, operations in sorted(closed_document()["paths"].items(), key=lambda item: item[0].count("{")):
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


def _by_label(schema: Schema) -> Schema:
    """Without what is mostly refused: to name a model as well, a lease, a time, and tokens that have no price."""
    likely = deepcopy(schema)
    for name in _REFUSED_MOSTLY:
        likely["properties"].pop(name, None)
    _require(likely, "label")
    return likely


def _require(schema: Schema, name: str) -> None:
    """A member that the document lets out, or lets be null."""
    schema["properties"][name] = next(part for part in schema["properties"][name]["anyOf"] if part["type"] != "null")
    schema["required"] = [*schema.get("required", []), name]


def _with_known_limits(schema: Schema) -> Schema:
    likely = deepcopy(schema)
    (value,) = likely.pop("patternProperties").values()
    if value.get("type") == "integer":
        value |= {"minimum": max(value["minimum"], -_AMOUNT_LIKELY), "maximum": _AMOUNT_LIKELY}
    return {**likely, "properties": {limit: deepcopy(value) for limit in LIMIT_NAMES}}
