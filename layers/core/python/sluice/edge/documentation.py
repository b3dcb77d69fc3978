"""What routes say about their answers in the OpenAPI document."""

from http import HTTPStatus
from typing import Any, Final

from sluice.edge.problems import CONTENT_TYPE

_PROBLEM_SCHEMA: Final = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "request_id"],
    "properties": {
        "type": {"type": "string", "description": "urn:sluice:problem: and the kind"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "request_id": {"type": "string"},
        "field": {"type": "string", "description": "what is wrong, where a field is to blame"},
    },
}


def answer(model: type, description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"model": model}}}


def problems(*kinds: tuple[HTTPStatus, str]) -> dict[int, Any]:
    """Problem documents by status; several kinds may share one."""
    described: dict[int, list[str]] = {}
    for status, kind in kinds:
        described.setdefault(status.value, []).append(kind)
    return {
        status: {"description": ", ".join(names), "content": {CONTENT_TYPE: {"schema": _PROBLEM_SCHEMA}}}
        for status, names in described.items()
    }
