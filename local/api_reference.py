"""Writes the OpenAPI document and docs/api.md from the routes themselves: `make docs`. A test notices stale ones."""

import importlib
import json
import os
from pathlib import Path
from typing import Any, Final

from local import ROOT
from sluice.edge.models import ID_PATTERN, MODEL_ID_PATTERN, REGION_PATTERN
from sluice.edge.times import DAY_PATTERN, TIME_PATTERN

# Where the function that serves it finds it.
OPENAPI: Final = ROOT / "lambdas" / "control_plane" / "openapi.json"
REFERENCE: Final = ROOT / "docs" / "api.md"
FUNCTIONS: Final = ("data_plane", "control_plane", "identity")
_HEAD: Final = """# API reference

Generated from the routes by `make docs`; the whole document is at
`/v1/openapi.json`. JSON in and out. Errors
are problem documents (RFC 9457): `type` is `urn:sluice:problem:` and the kind named below. Any path may also answer 404
`not-found`, 405 `method-not-allowed` with `Allow`, or 500 `internal`; beyond the stage's rate API Gateway itself
answers 429 in its own format.

`POST /v1/acquire` answers 201 and 429 `limit-exceeded` with `RateLimit-Policy` and `RateLimit`, where buckets took
part; `limit-exceeded` and `contended` with `Retry-After` (seconds), `retry-after-ms` and `retry_after_ms`, the former
also with `admit_at`, `violations` and `remedies`. `budget-exceeded` has `x-should-retry: false`, since waiting for
seconds does not help, with `resets_at`, `violations` and `remedies`. Orgs, apps, entities, labels, inference profiles,
limits and budgets answer with their version as `ETag`; send it back as `If-Match`.

Money is in whole millionths of a US dollar. `GET /v1/selection` answers 429 `all-quotas-exceeded` with `resets_at`,
`labels`, `retry_after_ms` and its headers. An event of a batch that is refused has its problem document in its result.

An id is `[A-Za-z0-9][A-Za-z0-9._:@+-]{0,127}`, a model id 1 to 256 printable ASCII characters without spaces, a day
`yyyy-mm-dd` in the org's time zone, a time RFC 3339 with its zone; what is finer than a
millisecond is cut off.
"""
# How what people write in many places is called here.
_NAMED: Final = {
    ID_PATTERN: "id",
    MODEL_ID_PATTERN: "model id",
    REGION_PATTERN: "region",
    DAY_PATTERN: "day",
    TIME_PATTERN: "time",
}


def documents() -> dict[Path, str]:
    """The files as they should be."""
    document = openapi_document()
    return {OPENAPI: json.dumps(document, indent=2) + "\n", REFERENCE: _reference(document)}


def openapi_document() -> dict[str, Any]:
    """Of all functions together."""
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
    os.environ.setdefault("SLUICE_ENVIRONMENT", "docs")
    os.environ.setdefault("SLUICE_TABLE", "docs")
    document = _merged([importlib.import_module(f"{function}.handler").application.openapi() for function in FUNCTIONS])
    return _without_default_errors(document)


def _merged(documents: list[dict[str, Any]]) -> dict[str, Any]:
    first, *others = documents
    for other in others:
        first["paths"] |= other["paths"]
        first["components"]["schemas"] |= other["components"]["schemas"]
    return first


def _without_default_errors(document: dict[str, Any]) -> dict[str, Any]:
    """Powertools describes its own validation error on every route; ours is a problem document."""
    for operations in document["paths"].values():
        for operation in operations.values():
            if "HTTPValidationError" in json.dumps(operation["responses"].get("422", {})):
                del operation["responses"]["422"]
            # An answer without content has no schema either.
            operation["responses"].get("204", {}).pop("content", None)
            operation["responses"] = dict(sorted(operation["responses"].items()))
    for name in ("HTTPValidationError", "ResponseValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)
    return document


def _reference(document: dict[str, Any]) -> str:
    lines = [_HEAD]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            lines += [f"## {method.upper()} {path}", "", operation["summary"], ""]
            lines += _parameters(document, operation.get("parameters", []))
            body = operation.get("requestBody")
            if body is not None:
                lines += _fields(document, "Body", body["content"]["application/json"]["schema"])
            lines += ["| status | meaning |", "|---|---|"]
            lines += [f"| {status} | {answer['description']} |" for status, answer in operation["responses"].items()]
            lines.append("")
            for status, answer in operation["responses"].items():
                schema = answer.get("content", {}).get("application/json", {}).get("schema")
                if schema is not None:
                    lines += _fields(document, f"Answer {status}", schema)
    return "\n".join(lines).rstrip() + "\n"


def _parameters(document: dict[str, Any], parameters: list[dict[str, Any]]) -> list[str]:
    if not parameters:
        return []
    lines = ["| parameter | in | type | required |", "|---|---|---|---|"]
    for parameter in parameters:
        required = "yes" if parameter.get("required") else ""
        kind = _type(document, parameter["schema"])
        lines.append(f"| `{parameter['name']}` | {parameter['in']} | {kind} | {required} |")
    return [*lines, ""]


def _fields(document: dict[str, Any], title: str, schema: dict[str, Any]) -> list[str]:
    model = _resolved(document, schema)
    if "properties" not in model:
        return []
    lines = [f"{title}:", "", "| field | type | required | meaning |", "|---|---|---|---|"]
    for name, part in model["properties"].items():
        required = "yes" if name in model.get("required", []) else ""
        meaning = part.get("description", "").replace("|", "\\|")
        lines.append(f"| `{name}` | {_type(document, part)} | {required} | {meaning} |")
    return [*lines, ""]


def _type(document: dict[str, Any], schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_type(document, part) for part in schema["anyOf"])
    if "$ref" in schema:
        model = _resolved(document, schema)
        return "{" + ", ".join(f"{name}: {_type(document, part)}" for name, part in model["properties"].items()) + "}"
    if schema.get("type") == "array":
        return f"list of {_type(document, schema['items'])}"
    values = schema.get("additionalProperties") or next(iter(schema.get("patternProperties", {}).values()), None)
    if values:
        return "map" if values is True else f"map of name to {_type(document, values)}"
    return _NAMED.get(schema.get("pattern", "")) or _scalar(schema)


def _scalar(schema: dict[str, Any]) -> str:
    bounds = [f"{int(schema[bound])}" for bound in ("minimum", "maximum") if bound in schema]
    pattern = f" `{schema['pattern'].replace('|', chr(92) + '|')}`" if "pattern" in schema else ""
    return f"{schema['type']}{' ' + '..'.join(bounds) if bounds else ''}{pattern}"


def _resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in schema:
        return schema
    model: dict[str, Any] = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    return model


def main() -> None:
    for path, text in documents().items():
        path.write_text(text)
        print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
