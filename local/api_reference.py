"""Writes the OpenAPI document and docs/api.md from the routes themselves: `make docs`. A test notices stale ones."""

import importlib
import json
import os
from pathlib import Path
from typing import Any, Final

from local import ROOT
from local.api_text import reference

# Where the function that serves it finds it.
OPENAPI: Final = ROOT / "lambdas" / "control_plane" / "openapi.json"
REFERENCE: Final = ROOT / "docs" / "api.md"
FUNCTIONS: Final = ("data_plane", "control_plane", "identity")


def documents() -> dict[Path, str]:
    """The files as they should be."""
    document = openapi_document()
    return {OPENAPI: json.dumps(document, indent=2) + "\n", REFERENCE: reference(document)}


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


def main() -> None:
    for path, text in documents().items():
        path.write_text(text)
        print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
