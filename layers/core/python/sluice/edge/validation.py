"""What pydantic has against a body, as a problem document."""

from collections.abc import Sequence
from typing import Any, Final

from sluice.edge.models import ID_PATTERN, MODEL_ID_PATTERN, REGION_PATTERN
from sluice.edge.problems import Problem, invalid_request
from sluice.edge.times import DAY_PATTERN, TIME_PATTERN

# Clients choose names of fields, so what is repeated to them is bounded.
_ERRORS_MAX: Final = 10
_FIELD_NAME_MAX: Final = 200
_LOCATIONS: Final = frozenset({"body", "header", "path", "query"})
_IN_WORDS: Final = {
    ID_PATTERN: "is not an id: 1 to 128 letters, digits or any of . _ : @ + - with a letter or a digit first",
    MODEL_ID_PATTERN: "must have 1 to 256 printable ASCII characters and no space",
    REGION_PATTERN: "is not a region, as eu-central-1",
    DAY_PATTERN: "is not a day, as yyyy-mm-dd",
    TIME_PATTERN: "is not a time, as 2026-11-18T10:20:00Z",
    r"^[ -~]{1,128}$": "must have 1 to 128 printable ASCII characters",
}


def validation_problem(found: Sequence[Any]) -> Problem:
    """Names the field, never the value: it may be a secret that was put into the wrong place."""
    if found[0]["type"] == "json_invalid":
        return invalid_request("body", "is not a JSON object")
    named = [{"field": _field_name(error["loc"]), "detail": _detail(error)} for error in found[:_ERRORS_MAX]]
    first = named[0]
    return invalid_request(first["field"], first["detail"], named if len(named) > 1 else ())


def _detail(error: Any) -> str:
    """A pattern says little to whoever is to keep to it."""
    pattern = error.get("ctx", {}).get("pattern")
    return _IN_WORDS.get(pattern) or str(error["msg"])


def _field_name(location: Sequence[str | int]) -> str:
    inside = location[1:] if location and location[0] in _LOCATIONS else location
    parts = [str(part) for part in inside if part != "[key]"]
    return ".".join(parts)[:_FIELD_NAME_MAX] or "body"
