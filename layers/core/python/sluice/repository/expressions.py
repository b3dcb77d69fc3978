"""Update expressions, clause by clause."""

import re
from typing import Final

from sluice.repository import schema
from sluice.repository.keys import Key
from sluice.repository.requests import UpdateRequest
from sluice.repository.wire import Item, Value

_NAMES_AND_VALUES: Final = re.compile(r":\w+|\bb_\w+")


class Expression:
    """Collects the clauses of one update. Every write of a bucket counts itself in `v`."""

    __slots__ = ("adds", "conditions", "names", "removes", "sets", "values")

    def __init__(self) -> None:
        self.sets: list[str] = []
        self.adds: list[str] = ["v :one"]
        self.removes: list[str] = []
        self.conditions: list[str] = []
        self.names: dict[str, str] = {}
        self.values: dict[str, Value] = {":one": 1}

    def request(self, key: Key) -> UpdateRequest:
        clauses = [
            f"{verb} {', '.join(parts)}"
            for verb, parts in (("SET", self.sets), ("ADD", self.adds), ("REMOVE", self.removes))
            if parts
        ]
        request: UpdateRequest = {
            "Key": {schema.PARTITION_KEY: key.pk, schema.SORT_KEY: key.sk},
            "UpdateExpression": " ".join(clauses),
            "ConditionExpression": " AND ".join(self.conditions),
            "ExpressionAttributeValues": self.values,
        }
        if self.names:
            request["ExpressionAttributeNames"] = self.names
        return request


def assigned(attributes: Item) -> tuple[dict[str, str], str, dict[str, Value]]:
    """The names, the clause and the values that set these attributes, under aliases that begin with `s`."""
    names = {f"#s{number}": attribute for number, attribute in enumerate(attributes)}
    values: dict[str, Value] = {f":s{number}": content for number, content in enumerate(attributes.values())}
    return names, ", ".join(f"#s{number} = :s{number}" for number in range(len(attributes))), values


def compacted(request: UpdateRequest) -> UpdateRequest:
    """The same request under the shortest names. An expression may have 4 KB, and a rebase touches every limit."""
    names = {name: alias for alias, name in request["ExpressionAttributeNames"].items()}
    values: dict[str, str] = {}

    def shorter(match: re.Match[str]) -> str:
        word = match[0]
        if word.startswith(":"):
            return values.setdefault(word, f":{len(values)}")
        return names.setdefault(word, f"#{len(names)}")

    update, condition = (
        _NAMES_AND_VALUES.sub(shorter, request[part]) for part in ("UpdateExpression", "ConditionExpression")
    )
    given = request["ExpressionAttributeValues"]
    return {
        "Key": request["Key"],
        "UpdateExpression": update,
        "ConditionExpression": condition,
        "ExpressionAttributeNames": {alias: name for name, alias in names.items()},
        "ExpressionAttributeValues": {short: given[long] for long, short in values.items()},
    }
