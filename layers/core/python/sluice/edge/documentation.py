"""What routes say about their answers in the OpenAPI document."""

from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final

from sluice.edge.problems import CONTENT_TYPE

PROBLEM_SCHEMA: Final = {
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


Links = Mapping[str, Mapping[str, Any]]
NO_LINKS: Final[Links] = MappingProxyType({})


def answer(model: type, description: str, links: Links = NO_LINKS) -> dict[str, Any]:
    described = {"description": description, "content": {"application/json": {"model": model}}}
    return {**described, "links": dict(links)} if links else described


def link(operation_id: str, parameters: Mapping[str, str], body: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Where a client can go from an answer, and which parts of it are taken along."""
    described = {"operationId": operation_id, "parameters": dict(parameters)}
    return described if body is None else {**described, "requestBody": dict(body)}


def problems(*kinds: tuple[HTTPStatus, str]) -> dict[int, Any]:
    """Problem documents by status; several kinds may share one."""
    described: dict[int, list[str]] = {}
    for status, kind in kinds:
        described.setdefault(status.value, []).append(kind)
    return {
        status: {"description": ", ".join(names), "content": {CONTENT_TYPE: {"schema": PROBLEM_SCHEMA}}}
        for status, names in described.items()
    }
