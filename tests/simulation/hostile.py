"""Requests that AWS refuses, and the kind of each refusal."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sluice.repository.keys import Key
from sluice.repository.store import Store
from sluice.repository.wire import Item, Value
from tests.simulation.refusals import Refusal

Values = Mapping[str, Value]


@dataclass(frozen=True)
class Hostile:
    text: str
    kind: Refusal
    run: Callable[[Store, Key], object]


def _update(expression: str, values: Values, names: Mapping[str, str] | None = None) -> Callable[[Store, Key], object]:
    return _conditional(expression, None, values, names)


def _condition(
    condition: str, values: Values, names: Mapping[str, str] | None = None
) -> Callable[[Store, Key], object]:
    return _conditional("SET q = :q", condition, {":q": 1, **values}, names)


def _conditional(
    expression: str, condition: str | None, values: Values, names: Mapping[str, str] | None
) -> Callable[[Store, Key], object]:
    def run(store: Store, key: Key) -> object:
        request: Any = {"Key": {**key.attributes}, "UpdateExpression": expression}
        if condition is not None:
            request["ConditionExpression"] = condition
        if values:
            request["ExpressionAttributeValues"] = dict(values)
        if names:
            request["ExpressionAttributeNames"] = dict(names)
        return store.update(request, repeatable=False)

    return run


def _put(more: Callable[[Key], Item]) -> Callable[[Store, Key], object]:
    return lambda store, key: store.put({"Item": {**key.attributes, **more(key)}}, repeatable=False)


def _query(request: Mapping[str, Any]) -> Callable[[Store, Key], object]:
    def run(store: Store, key: Key) -> object:
        values = {":p": key.pk, **request.get("ExpressionAttributeValues", {})}
        whole: Any = {"KeyConditionExpression": "PK = :p", **request, "ExpressionAttributeValues": values}
        return store.query(whole)

    return run


def _transact(make: Callable[[Key], list[Any]], token: str = "hostile-token") -> Callable[[Store, Key], object]:
    return lambda store, key: store.transact(make(key), f"{token}-{key.pk}"[:36] if token == "hostile-token" else token)


def _put_and_check(key: Key) -> list[Any]:
    return [{"Put": {"Item": {**key.attributes}}}, _check(key, "attribute_not_exists(nowhere)")]


def _update_and_check(key: Key) -> list[Any]:
    update = {"Key": {**key.attributes}, "UpdateExpression": "REMOVE n"}
    return [{"Update": update}, _check(key, "attribute_not_exists(nowhere)")]


def _update_and_failing_check(key: Key) -> list[Any]:
    update = {"Key": {**key.attributes}, "UpdateExpression": "REMOVE n"}
    return [{"Update": update}, _check(key, "attribute_exists(nowhere)")]


def _check(key: Key, condition: str) -> Any:
    return {"ConditionCheck": {"Key": {**key.attributes}, "ConditionExpression": condition}}


def _nested(levels: int) -> Value:
    value: Value = 1
    for _ in range(levels):
        value = [value]
    return value


_LONG: Final = "x" * 2100
_KINDS: Final[list[tuple[Refusal, str, Callable[[Store, Key], object]]]] = [
    (Refusal.SYNTAX, "two comparisons in a row", _condition("n = :a = :q", {":a": 1})),
    (Refusal.SYNTAX, "IN without operands", _condition("n IN ()", {})),
    (Refusal.SYNTAX, "a bare attribute", _condition("flag", {})),
    (Refusal.SYNTAX, "a name that begins with a digit", _condition("9n = :a", {":a": 1})),
    (Refusal.SYNTAX, "an unknown section", _update("UPDATE q = :a", {":a": 1})),
    (Refusal.SYNTAX, "a comma at the end", _update("SET q = :a,", {":a": 1})),
    (Refusal.SYNTAX, "nothing to set", _update("SET q =", {})),
    (Refusal.SYNTAX, "ADD of a path", _update("ADD q n", {})),
    (Refusal.SYNTAX, "three terms", _update("SET q = :a + :b + :a", {":a": 1, ":b": 2})),
    (Refusal.SYNTAX, "another sign for not equal", _condition("n != :a", {":a": 1})),
    (Refusal.ARITHMETIC, "a name with a dash", _condition("a-b = :a", {":a": 1})),
    (Refusal.EMPTY_EXPRESSION, "an empty condition", _condition("", {})),
    (Refusal.EMPTY_EXPRESSION, "an empty update", _update("", {})),
    (Refusal.EXPRESSION_SIZE, "a long condition", _condition(" OR ".join(["n = :a"] * 500), {":a": 1})),
    (Refusal.OPERATORS, "many operators", _condition(" OR ".join(["n=:a"] * 151), {":a": 1})),
    (Refusal.IN_OPERANDS, "many choices", _condition("n IN (" + ", ".join([":a"] * 101) + ")", {":a": 1})),
    (Refusal.ARITHMETIC, "a sum", _condition("n <= v + :a", {":a": 1})),
    (Refusal.ARITHMETIC, "a difference", _condition("n - :a > :b", {":a": 1, ":b": 1})),
    (Refusal.RESERVED_WORD, "ttl", _condition("ttl >= :a", {":a": 1})),
    (Refusal.RESERVED_WORD, "name", _update("SET name = :a", {":a": "x"})),
    (
        Refusal.RESERVED_WORD,
        "name, where the condition fails",
        _conditional("REMOVE name", "q = :a", {":a": 1}, None),
    ),
    (Refusal.UNKNOWN_FUNCTION, "foo", _condition("foo(n)", {})),
    (Refusal.UNKNOWN_FUNCTION, "capitals", _condition("ATTRIBUTE_EXISTS(n)", {})),
    (Refusal.FUNCTION_PLACE, "attribute_exists compared", _condition("attribute_exists(n) = :a", {":a": True})),
    (Refusal.FUNCTION_PLACE, "size alone", _condition("size(n)", {})),
    (Refusal.NEEDS_PATH, "attribute_exists of a value", _condition("attribute_exists(:a)", {":a": 1})),
    (Refusal.SAME_OPERAND, "an attribute equal to itself", _condition("n = n", {})),
    (Refusal.SAME_OPERAND, "an attribute between itself", _condition("n BETWEEN n AND :a", {":a": 1})),
    (Refusal.REDUNDANT_PARENTHESES, "two pairs", _condition("((n = :a))", {":a": 1})),
    (Refusal.UNDEFINED_NAME, "#n", _condition("#n = :a", {":a": 1})),
    (Refusal.UNDEFINED_VALUE, ":z", _condition("n = :z", {})),
    (Refusal.UNUSED_NAME, "#n", _condition("n = :a", {":a": 1}, {"#n": "n"})),
    (Refusal.UNUSED_VALUE, ":z", _condition("n = :a", {":a": 1, ":z": 1})),
    (Refusal.BAD_PLACEHOLDER, "a name without its sign", _condition("n = :a", {":a": 1}, {"n": "n"})),
    (Refusal.OPERAND_TYPE, "a truth value in order", _condition("n < :a", {":a": True})),
    (Refusal.OPERAND_TYPE, "nothing in order", _condition("n >= :a", {":a": None})),
    (Refusal.OPERAND_TYPE, "a text added", _update("SET q = :a + :b", {":a": 1, ":b": "x"})),
    (Refusal.OPERAND_TYPE, "ADD of a text", _update("ADD q :a", {":a": "x"})),
    (Refusal.OPERAND_TYPE, "a number as prefix of nothing", _condition("begins_with(nowhere, :a)", {":a": 1})),
    (Refusal.BOUNDS_CROSSED, "BETWEEN", _condition("n BETWEEN :a AND :b", {":a": 2, ":b": 1})),
    (
        Refusal.BOUNDS_CROSSED,
        "BETWEEN never reached",
        _condition("PK = :c AND q BETWEEN :a AND :b", {":a": 2, ":b": 1, ":c": "no"}),
    ),
    (Refusal.BOUNDS_TYPES, "BETWEEN", _condition("n BETWEEN :a AND :b", {":a": 2, ":b": "x"})),
    (Refusal.SECTION_TWICE, "SET", _update("SET q = :a SET r = :a", {":a": 1})),
    (Refusal.PATHS_OVERLAP, "SET and ADD", _update("SET q = :a ADD q :a", {":a": 1})),
    (Refusal.PATHS_OVERLAP, "two names of one attribute", _update("SET #a = :a, q = :a", {":a": 1}, {"#a": "q"})),
    (Refusal.KEY_UPDATED, "SK", _update("SET SK = :a", {":a": "x"})),
    (Refusal.KEY_UPDATED, "REMOVE PK", _update("REMOVE PK", {})),
    (Refusal.MISSING_ATTRIBUTE, "a sum", _update("SET q = nowhere + :a", {":a": 1})),
    (Refusal.MISSING_ATTRIBUTE, "a copy", _update("SET q = nowhere", {})),
    (Refusal.PATH_INVALID, "into nothing", _update("SET nowhere.x = :a", {":a": 1})),
    (Refusal.PATH_INVALID, "ADD into nothing", _update("ADD nowhere.x :a", {":a": 1})),
    (Refusal.PATH_INVALID, "REMOVE from nothing", _update("REMOVE nowhere.x", {})),
    (Refusal.NUMBER_DIGITS, "39 digits", _put(lambda _key: {"n": 10**38 + 1})),
    (Refusal.NUMBER_DIGITS, "39 digits in a list", _put(lambda _key: {"n": [10**38 + 1]})),
    (Refusal.NUMBER_RANGE, "10^126", _put(lambda _key: {"n": 10**126})),
    (Refusal.RESULT_DIGITS, "a sum", _update("SET q = :a + :b", {":a": 10**38 - 1, ":b": 2})),
    (Refusal.ATTRIBUTE_NAME, "in a map", _put(lambda _key: {"doc": {"": 1}})),
    (Refusal.NESTING, "33 lists", _put(lambda _key: {"n": _nested(33)})),
    (Refusal.KEY_TYPE, "a number", _put(lambda _key: {"PK": 1})),
    (Refusal.KEY_EMPTY, "SK", _put(lambda _key: {"SK": ""})),
    (Refusal.KEY_SIZE, "PK", _put(lambda key: {"PK": key.pk + _LONG})),
    (Refusal.INDEX_KEY_TYPE, "GSI1PK", _put(lambda _key: {"GSI1PK": 1})),
    (Refusal.UPDATED_INDEX_KEY_TYPE, "GSI1PK", _update("SET GSI1PK = :a", {":a": 1})),
    (Refusal.INDEX_KEY_EMPTY, "GSI3SK", _put(lambda _key: {"GSI3SK": ""})),
    (Refusal.INDEX_KEY_EMPTY, "GSI3SK updated", _update("SET GSI3SK = :a", {":a": ""})),
    (Refusal.INDEX_KEY_SIZE, "GSI1SK", _put(lambda _key: {"GSI1PK": "a", "GSI1SK": _LONG})),
    (Refusal.INDEX_KEY_PATH, "GSI1PK", _update("SET GSI1PK.x = :a", {":a": 1})),
    (Refusal.ITEM_SIZE, "400 KB", _put(lambda _key: {"s": "x" * (400 * 1024)})),
    (Refusal.KEY_CONDITION, "no equality", _query({"KeyConditionExpression": "PK > :p"})),
    (Refusal.KEY_CONDITION, "another attribute", _query({"KeyConditionExpression": "PK = :p AND n = :p"})),
    (Refusal.KEY_CONDITION_OPERATOR, "OR", _query({"KeyConditionExpression": "PK = :p OR SK = :p"})),
    (Refusal.FILTER_ON_KEY, "SK", _query({"FilterExpression": "SK > :p"})),
    (Refusal.NO_SUCH_INDEX, "GSI9", _query({"IndexName": "GSI9", "KeyConditionExpression": "GSI9PK = :p"})),
    (
        Refusal.CONSISTENT_INDEX,
        "GSI1",
        _query({"IndexName": "GSI1", "KeyConditionExpression": "GSI1PK = :p", "ConsistentRead": True}),
    ),
    (
        Refusal.FILTER_NOT_PROJECTED,
        "n in GSI3",
        _query(
            {
                "IndexName": "GSI3",
                "KeyConditionExpression": "GSI3PK = :p",
                "FilterExpression": "n > :n",
                "ExpressionAttributeValues": {":n": 1},
            }
        ),
    ),
    (Refusal.START_KEY, "of another partition", _query({"ExclusiveStartKey": {"PK": "other", "SK": "x"}})),
    (Refusal.START_KEY, "without its sort key", _query({"ExclusiveStartKey": {"PK": "other"}})),
    (Refusal.BATCH_DUPLICATES, "batch_get", lambda store, key: store.batch_get([key, key], consistent=True)),
    (Refusal.TRANSACTION_TWICE, "a put and a check", _transact(_put_and_check)),
    (Refusal.TRANSACTION_TWICE, "an update and a check", _transact(_update_and_check)),
    (Refusal.TRANSACTION_TWICE, "where a condition fails", _transact(_update_and_failing_check)),
    (
        Refusal.TRANSACTION_ITEMS,
        "101 puts",
        _transact(lambda key: [{"Put": {"Item": {"PK": f"{key.pk}{n}", "SK": "x"}}} for n in range(101)]),
    ),
    (
        Refusal.TRANSACTION_TOKEN,
        "37 characters",
        _transact(lambda key: [{"Put": {"Item": {**key.attributes}}}], "t" * 37),
    ),
]
HOSTILE: Final = tuple(Hostile(f"{kind.value}: {text}", kind, run) for kind, text, run in _KINDS)

TRICKY: Final[tuple[tuple[str, Values, bool], ...]] = (
    ("nowhere = elsewhere", {}, False),
    ("nowhere <> elsewhere", {}, True),
    ("nowhere <> :one", {":one": 1}, True),
    ("NOT nowhere = :one", {":one": 1}, True),
    ("nowhere IN (:one, elsewhere)", {":one": 1}, False),
    ("s < :one", {":one": 1}, False),
    ("flag = :one", {":one": 1}, False),
    ("size(s) = :three", {":three": 3}, True),
    ("size(n) >= :zero", {":zero": 0}, False),
    ("size(nowhere) <> :zero", {":zero": 0}, True),
    ("begins_with(n, :text)", {":text": "1"}, False),
    ("contains(:text, s)", {":text": "xabcx"}, True),
    ("n BETWEEN :one AND nowhere", {":one": 1}, False),
    ("n = :one OR n = :five AND s = :text", {":one": 1, ":five": 5, ":text": "no"}, False),
    ("NOT n = :one AND s = :text", {":one": 1, ":text": "abc"}, True),
)
"""Valid conditions that are easy to get wrong, on {n: 5, s: "abc", flag: true}."""
