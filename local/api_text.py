"""The OpenAPI document as people read it: a section for each route, then the objects that stand in many places."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from local.api_head import HEAD
from local.api_types import flat, type_of
from sluice.core.identity import Role
from sluice.edge.access import ACCESS, Access, Scope

Schema = Mapping[str, Any]
_REF: Final = "#/components/schemas/"
_JSON: Final = "application/json"
# Whatever has no more fields than that is shown where it stands, however often.
_SMALL: Final = 4
_OWN_SUBTREE: Final = "app (its own subtree)"
_OF_ITS_ORG: Final[Mapping[Scope, str]] = {Scope.ORG: "org (its own)"}
_OF_AN_APP: Final[Mapping[Scope, str]] = {
    Scope.CALLER: "app",
    Scope.QUERY_APP: "app (its own)",
    **dict.fromkeys(
        (
            Scope.PATH_ENTITY,
            Scope.QUERY_ENTITY,
            Scope.ASKED_ENTITY,
            Scope.PUT_ENTITY,
            Scope.BODY_ENTITY,
            Scope.LEASE,
        ),
        _OWN_SUBTREE,
    ),
}


def reference(document: dict[str, Any]) -> str:
    return _Reference(document).text()


class _Reference:
    def __init__(self, document: dict[str, Any]) -> None:
        self._paths = document["paths"]
        self._models: Mapping[str, Schema] = document["components"]["schemas"]
        self._shared = self._shown_once()

    def text(self) -> str:
        lines = [HEAD]
        for path, operations in self._paths.items():
            for method, operation in operations.items():
                lines += self._operation(method.upper(), path, operation)
        if self._shared:
            lines += ["## Objects", "", "Those that stand in several of the above.", ""]
        for name in sorted(self._shared):
            lines += [f"### {name}", "", *self._table(self._models[name], required=name in self._sent())]
        return "\n".join(lines).rstrip() + "\n"

    def _operation(self, method: str, path: str, operation: Schema) -> list[str]:
        lines = [f"## {method} {path}", "", operation["summary"], ""]
        if "description" in operation:
            lines += [operation["description"], ""]
        access = ACCESS[method, path.replace("{", "<").replace("}", ">")]
        lines += [f"Who: {_who(access)}", "", *self._parameters(operation.get("parameters", []))]
        body = operation.get("requestBody")
        if body is not None:
            # Always in its place: it is what is looked for first.
            lines += ["Body:", "", *self._table(self._resolved(body["content"][_JSON]["schema"]), required=True)]
        lines += ["| status | meaning |", "|---|---|"]
        lines += [f"| {status} | {answer['description']} |" for status, answer in operation["responses"].items()]
        return [*lines, "", *self._answers(operation["responses"])]

    def _answers(self, responses: Schema) -> list[str]:
        """Statuses with the same answer share its table."""
        found: list[tuple[Schema, list[str]]] = []
        for status, answer in responses.items():
            schema = answer.get("content", {}).get(_JSON, {}).get("schema")
            if schema is None or "properties" not in self._resolved(schema):
                continue
            same = next((statuses for known, statuses in found if known == schema), None)
            if same is None:
                found.append((schema, [status]))
            else:
                same.append(status)
        lines = []
        for schema, statuses in found:
            title = f"Answer {' and '.join(statuses)}:"
            if _named(schema) in self._shared:
                lines += [f"{title} {self._type(schema)}", ""]
            else:
                lines += [title, "", *self._table(self._resolved(schema), required=False)]
        return lines

    def _parameters(self, parameters: list[Schema]) -> list[str]:
        if not parameters:
            return []
        lines = ["| parameter | in | type | required | meaning |", "|---|---|---|---|---|"]
        for parameter in parameters:
            required = "yes" if parameter.get("required") else ""
            kind = self._type(parameter["schema"])
            meaning = flat(parameter.get("description", ""))
            lines.append(f"| `{parameter['name']}` | {parameter['in']} | {kind} | {required} | {meaning} |")
        return [*lines, ""]

    def _table(self, model: Schema, *, required: bool) -> list[str]:
        """`required`: whether that is of interest, which it is in what is sent: an answer has all of its fields."""
        lines = [model["description"], ""] if "description" in model else []
        if required:
            lines += ["| field | type | required | meaning |", "|---|---|---|---|"]
        else:
            lines += ["| field | type | meaning |", "|---|---|---|"]
        return [*lines, *self._rows(model, "", required=required), ""]

    def _rows(self, model: Schema, prefix: str, *, required: bool) -> Iterator[str]:
        for name, part in model["properties"].items():
            inner = dict(self._inner(part))
            own_words = [part.get("description", ""), *(one.get("description", "") for one in inner.values())]
            # What stands at the field itself may be that of its object.
            meaning = flat(". ".join(words.rstrip(".") for words in dict.fromkeys(own_words) if words))
            if any(words.endswith(".") for words in own_words):
                meaning += "."
            kind = self._type(part)
            needed = f" {'yes' if name in model.get('required', []) else ''} |" if required else ""
            yield f"| `{prefix}{name}` | {kind} |{needed} {meaning} |"
            for where, one in inner.items():
                yield from self._rows(one, f"{prefix}{name}{where}.", required=required)

    def _inner(self, schema: Schema) -> Iterator[tuple[str, Schema]]:
        """The objects whose fields are shown below a field, and where in it they are."""
        for part in schema.get("anyOf", ()):
            yield from self._inner(part)
        if "properties" in schema:
            yield "", schema
        elif "$ref" in schema and _named(schema) not in self._shared:
            yield "", self._resolved(schema)
        elif schema.get("type") == "array":
            yield from ((f"[]{where}", one) for where, one in self._inner(schema["items"]))
        elif (values := _values(schema)) is not None:
            yield from ((f".<name>{where}", one) for where, one in self._inner(values))

    def _type(self, schema: Schema) -> str:
        return type_of(schema, lambda name: f"[{name}](#{name.lower()})" if name in self._shared else "object")

    def _resolved(self, schema: Schema) -> Schema:
        name = _named(schema)
        return schema if name is None else self._models[name]

    def _sent(self) -> set[str]:
        """What is part of a body."""
        bodies = [
            operation["requestBody"]
            for operations in self._paths.values()
            for operation in operations.values()
            if "requestBody" in operation
        ]
        found: set[str] = set()
        fresh = {name for body in bodies for name in _names(body)}
        while fresh:
            found |= fresh
            fresh = {inner for name in fresh for inner in _names(self._models[name])} - found
        return found

    def _shown_once(self) -> frozenset[str]:
        """The larger objects that stand in several places, and those of which one place has either of several."""
        places: Counter[str] = Counter()
        either: set[str] = set()
        for operations in self._paths.values():
            for operation in operations.values():
                # The same answer to several statuses is one place. A body is shown in its own.
                places.update(set(_names(operation["responses"])))
        for model in self._models.values():
            places.update(_names(model))
            either.update(*_alternatives(model))
        large = {name for name, model in self._models.items() if len(model.get("properties", ())) > _SMALL}
        return frozenset({name for name in large if places[name] > 1} | either)


def _who(access: Access) -> str:
    if access.scope is Scope.OPEN:
        return "anybody"
    named = {
        Role.OPERATOR: "operator",
        Role.ORG: _OF_ITS_ORG.get(access.scope, "org"),
        Role.APP: _OF_AN_APP.get(access.scope, "app"),
    }
    return ", ".join(words for role, words in named.items() if role in access.roles)


def _named(schema: Schema) -> str | None:
    """The name of the object that this refers to."""
    found: str | None = schema.get("$ref")
    return None if found is None else found.removeprefix(_REF)


def _names(part: Any) -> Iterator[str]:
    """Of all objects that this refers to, as often as it does."""
    if isinstance(part, dict):
        name = _named(part)
        if name is not None:
            yield name
        for value in part.values():
            yield from _names(value)
    elif isinstance(part, list):
        for value in part:
            yield from _names(value)


def _alternatives(part: Any) -> Iterator[set[str]]:
    """The objects of which one place has one or another: their fields would not be told apart below it."""
    if isinstance(part, dict):
        found = {name for one in part.get("anyOf", ()) if (name := _named(one)) is not None}
        if len(found) > 1:
            yield found
        for value in part.values():
            yield from _alternatives(value)
    elif isinstance(part, list):
        for value in part:
            yield from _alternatives(value)


def _values(schema: Schema) -> Schema | None:
    found = schema.get("additionalProperties") or next(iter(schema.get("patternProperties", {}).values()), None)
    return found if isinstance(found, dict) else None
