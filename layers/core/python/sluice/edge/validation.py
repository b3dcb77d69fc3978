"""What pydantic has against a body, as a problem document."""

from collections.abc import Sequence
from typing import Any, Final

from sluice.edge.problems import Problem, invalid_request

# Clients choose names of fields, so what is repeated to them is bounded.
_ERRORS_MAX: Final = 10
_FIELD_NAME_MAX: Final = 200
_LOCATIONS: Final = frozenset({"body", "header", "path", "query"})


def validation_problem(found: Sequence[Any]) -> Problem:
    """Names the field, never the value: it may be a secret that was put into the wrong place."""
    if found[0]["type"] == "json_invalid":
        return invalid_request("body", "is not a JSON object")
    named = [{"field": _field_name(error["loc"]), "detail": str(error["msg"])} for error in found[:_ERRORS_MAX]]
    first = named[0]
    return invalid_request(first["field"], first["detail"], named if len(named) > 1 else ())


def _field_name(location: Sequence[str | int]) -> str:
    inside = location[1:] if location and location[0] in _LOCATIONS else location
    parts = [str(part) for part in inside if part != "[key]"]
    return ".".join(parts)[:_FIELD_NAME_MAX] or "body"
