"""The types of fields as people read them, with all their bounds."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from sluice.core.limits import LIMIT_NAME_PATTERN
from sluice.edge.models import ID_PATTERN, MODEL_ID_PATTERN, REGION_PATTERN
from sluice.edge.times import DAY_PATTERN, TIME_PATTERN

Schema = Mapping[str, Any]
# How what people write in many places is called here.
_NAMED: Final = {
    ID_PATTERN: "id",
    f"^{LIMIT_NAME_PATTERN}$": "limit name",
    MODEL_ID_PATTERN: "model id",
    REGION_PATTERN: "region",
    DAY_PATTERN: "day",
    TIME_PATTERN: "RFC 3339 time",
}
# A longer one says nothing to people.
_PATTERN_MAX: Final = 40


def type_of(schema: Schema, object_of: Callable[[str], str]) -> str:
    """`object_of`: how an object of that name is called."""
    words = _words(schema, object_of)
    default = schema.get("default")
    if "const" in schema or isinstance(default, dict | list | None):
        return words
    return f"{words}, default `{str(default).lower() if isinstance(default, bool) else default}`"


def escaped(text: str) -> str:
    """For a cell of a table."""
    return text.replace("|", "\\|")


def flat(text: str) -> str:
    """In one line of a cell."""
    return escaped(" ".join(text.split()))


def _words(schema: Schema, object_of: Callable[[str], str]) -> str:
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_words(part, object_of) for part in schema["anyOf"])
    if "$ref" in schema:
        return object_of(schema["$ref"].rsplit("/", 1)[1])
    if schema.get("type") == "array":
        return f"list{_count(schema, 'Items')} of {_one_of_many(schema['items'], object_of)}"
    return _map(schema, object_of) or _scalar(schema)


def _map(schema: Schema, object_of: Callable[[str], str]) -> str | None:
    patterned = next(iter(schema.get("patternProperties", {}).items()), None)
    values = schema.get("additionalProperties") or (patterned and patterned[1])
    if not values:
        return None
    if values is True:
        return f"map{_count(schema, 'Properties')}"
    name = "name"
    if patterned is not None:
        name = _NAMED.get(patterned[0]) or f"name{_pattern(patterned[0])}"
    elif "propertyNames" in schema:
        name += _length(schema["propertyNames"])
    return f"map{_count(schema, 'Properties')} of {name} to {_one_of_many(values, object_of)}"


def _one_of_many(schema: Schema, object_of: Callable[[str], str]) -> str:
    words = _words(schema, object_of)
    return f"({words})" if " or " in words else words


def _scalar(schema: Schema) -> str:
    pattern = schema.get("pattern", "")
    if pattern in _NAMED:
        return _NAMED[pattern]
    either = pattern.split("|")
    if len(either) > 1 and all(part.startswith("^") and part.endswith("$") for part in either):
        return " or ".join(_NAMED.get(part) or _literal(part) for part in either)
    # A pattern that is shown has the length in it.
    bounds = _bounds(schema.get("minimum"), schema.get("maximum"))
    return f"{schema['type']}{bounds and f' {bounds}'}{_pattern(pattern) or _length(schema)}"


def _literal(pattern: str) -> str:
    """Of one that stands for a word, maybe with an id in it."""
    return f"`{pattern[1:-1].replace(ID_PATTERN[1:-1], '{id}').replace(chr(92), '')}`"


def _pattern(pattern: str) -> str:
    return f" `{escaped(pattern)}`" if 0 < len(pattern) <= _PATTERN_MAX else ""


def _length(schema: Schema) -> str:
    bounds = _bounds(schema.get("minLength"), schema.get("maxLength"))
    return f" of {bounds} characters" if bounds else ""


def _count(schema: Schema, of: str) -> str:
    bounds = _bounds(schema.get(f"min{of}"), schema.get(f"max{of}"))
    return f" ({bounds})" if bounds else ""


def _bounds(least: float | None, most: float | None) -> str:
    if most is None:
        return "" if least is None else f"from {int(least):,}"
    return f"up to {int(most):,}" if least is None else f"{int(least):,}..{int(most):,}"
