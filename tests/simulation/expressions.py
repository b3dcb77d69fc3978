"""Expressions compiled to closures, once per text and names: seeds by the thousand send the same few.

A closure gets the item and the values of the request. What AWS refuses whatever the item is (crossed bounds, operands
of a wrong type) is checked apart, before anything is looked at: a condition that is never reached is refused as well.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple, cast

from sluice.repository.wire import Item, Value
from tests.simulation.language import parse_condition, parse_update
from tests.simulation.refusals import NotModelled, Refusal, ValidationException
from tests.simulation.syntax import (
    Action,
    Between,
    Both,
    Compare,
    Function,
    Given,
    IfNotExists,
    In,
    Node,
    Not,
    Operand,
    ParsedUpdate,
    Path,
    Size,
    Sum,
    Term,
)
from tests.simulation.values import ORDERED, check_number, ordered, same, type_name

Values = Mapping[str, Value]
Test = Callable[[Item, Values], bool]
Check = Callable[[Values], None]
Read = Callable[[Item, Values], object]
Write = Callable[[Item, Item, Values], None]
Names = tuple[tuple[str, str], ...]
Order = Callable[[object, object], bool]

EXPRESSIONS_MAX: Final = 50_000


class _Missing:
    """An attribute that is not there: it equals and precedes nothing, not even another one."""

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]  # nothing looks it up


MISSING: Final = _Missing()

_SIGNS: Final[Mapping[str, Callable[[object, object], bool]]] = {
    "=": same,
    "<>": lambda left, right: not same(left, right),
    "<": ordered(cast("Order", operator.lt)),
    "<=": ordered(cast("Order", operator.le)),
    ">": ordered(cast("Order", operator.gt)),
    ">=": ordered(cast("Order", operator.ge)),
}


@dataclass(frozen=True, slots=True)
class Condition:
    """`attributes`: what it looks at."""

    test: Test
    checks: tuple[Check, ...]
    names: frozenset[str]
    values: frozenset[str]
    attributes: frozenset[str]
    root: Node


@dataclass(frozen=True, slots=True)
class Update:
    """`writes` put what the old item and the values say into the new one. `attributes`: what they change."""

    writes: tuple[Write, ...]
    checks: tuple[Check, ...]
    names: frozenset[str]
    values: frozenset[str]
    attributes: frozenset[str]
    paths: tuple[Path, ...]


class Placeholders(NamedTuple):
    """What the expressions of one request use, and what is to be checked of the values."""

    names: frozenset[str]
    values: frozenset[str]
    checks: tuple[Check, ...]


class Compiled(NamedTuple):
    """The expressions of one write. `used` is None where it has none."""

    condition: Condition | None
    update: Update | None
    used: Placeholders | None


@lru_cache(maxsize=EXPRESSIONS_MAX)
def compile_write(condition_text: str | None, update_text: str | None, names: Names) -> Compiled:
    condition = None if condition_text is None else compile_condition(condition_text, names)
    update = None if update_text is None else compile_update(update_text, names)
    return Compiled(condition, update, placeholders_of(condition, update))


def placeholders_of(*expressions: Condition | Update | None) -> Placeholders | None:
    given = [expression for expression in expressions if expression is not None]
    if not given:
        return None
    return Placeholders(
        frozenset().union(*(one.names for one in given)),
        frozenset().union(*(one.values for one in given)),
        tuple(check for one in given for check in one.checks),
    )


@lru_cache(maxsize=EXPRESSIONS_MAX)
def compile_condition(text: str, names: Names) -> Condition:
    parsed = parse_condition(text, dict(names))
    checks: list[Check] = []
    test = _test(parsed.root, checks)
    attributes = frozenset(path.attribute for path in parsed.paths)
    return Condition(test, tuple(checks), parsed.names, parsed.values, attributes, parsed.root)


@lru_cache(maxsize=EXPRESSIONS_MAX)
def compile_update(text: str, names: Names) -> Update:
    parsed = parse_update(text, dict(names))
    _check_overlaps(parsed)
    if sum(action.verb == "REMOVE" and isinstance(action.path.parts[-1], int) for action in parsed.actions) > 1:
        raise NotModelled("several elements of lists removed at once: their positions move")
    checks: list[Check] = []
    writes = tuple(_write(action, checks) for action in parsed.actions)
    paths = tuple(action.path for action in parsed.actions)
    attributes = frozenset(path.attribute for path in paths)
    return Update(writes, tuple(checks), parsed.names, parsed.values, attributes, paths)


def _check_overlaps(parsed: ParsedUpdate) -> None:
    seen: list[tuple[str | int, ...]] = []
    for action in parsed.actions:
        parts = action.path.parts
        for other in seen:
            shorter = min(len(parts), len(other))
            if parts[:shorter] == other[:shorter]:
                raise ValidationException(Refusal.PATHS_OVERLAP, f"{parts} and {other}")
        seen.append(parts)


def _test(node: Node, checks: list[Check]) -> Test:
    match node:
        case Both(sign, parts):
            tests = tuple(_test(part, checks) for part in parts)
            return _all(tests) if sign == "AND" else _any(tests)
        case Not(inner):
            negated = _test(inner, checks)
            return lambda item, values: not negated(item, values)
        case Compare(sign, left, right):
            return _compare(sign, left, right, checks)
        case Between(operand, low, high):
            return _between(operand, low, high, checks)
        case In(operand, choices):
            found, reads = _read(operand), tuple(_read(choice) for choice in choices)
            return lambda item, values: any(same(found(item, values), read(item, values)) for read in reads)
        case Function(name, operands):
            return _function(name, operands, checks)


def _all(tests: tuple[Test, ...]) -> Test:
    def test(item: Item, values: Values) -> bool:
        for one in tests:  # noqa: SIM110 - a generator would cost as much as the tests
            if not one(item, values):
                return False
        return True

    return test


def _any(tests: tuple[Test, ...]) -> Test:
    return lambda item, values: any(test(item, values) for test in tests)


def _compare(sign: str, left: Operand, right: Operand, checks: list[Check]) -> Test:
    compare = _SIGNS[sign]
    if sign not in {"=", "<>"}:
        checks += [_of_type(operand.name, ORDERED) for operand in (left, right) if isinstance(operand, Given)]
    if isinstance(left, Path) and len(left.parts) == 1 and isinstance(right, Given):
        attribute, given = left.attribute, right.name
        return lambda item, values: compare(item.get(attribute, MISSING), values[given])
    one, other = _read(left), _read(right)
    return lambda item, values: compare(one(item, values), other(item, values))


def _between(operand: Operand, low: Operand, high: Operand, checks: list[Check]) -> Test:
    checks += [_of_type(given.name, ORDERED) for given in (operand, low, high) if isinstance(given, Given)]
    if isinstance(low, Given) and isinstance(high, Given):
        checks.append(_in_order(low.name, high.name))
    found, least, most = _read(operand), _read(low), _read(high)
    at_least, at_most = _SIGNS[">="], _SIGNS["<="]

    def test(item: Item, values: Values) -> bool:
        value = found(item, values)
        return at_least(value, least(item, values)) and at_most(value, most(item, values))

    return test


def _function(name: str, operands: tuple[Operand, ...], checks: list[Check]) -> Test:
    first = _read(operands[0])
    if name == "attribute_exists":
        return lambda item, values: first(item, values) is not MISSING
    if name == "attribute_not_exists":
        return lambda item, values: first(item, values) is MISSING
    second = _read(operands[1])
    if name == "begins_with":
        checks += [_of_type(operand.name, (str,)) for operand in operands if isinstance(operand, Given)]
        return lambda item, values: _begins_with(first(item, values), second(item, values))
    return lambda item, values: _contains(first(item, values), second(item, values))


def _begins_with(text: object, prefix: object) -> bool:
    return isinstance(text, str) and isinstance(prefix, str) and text.startswith(prefix)


def _contains(holder: object, part: object) -> bool:
    if isinstance(holder, list):
        return any(same(element, part) for element in holder)
    return isinstance(holder, str) and isinstance(part, str) and part in holder


def _of_type(name: str, kinds: tuple[type, ...]) -> Check:
    def check(values: Values) -> None:
        if type(values[name]) not in kinds:
            raise ValidationException(Refusal.OPERAND_TYPE, f"{name} is a {type_name(values[name])}")

    return check


def _in_order(low: str, high: str) -> Check:
    def check(values: Values) -> None:
        least, most = values[low], values[high]
        if type(least) is not type(most):
            raise ValidationException(Refusal.BOUNDS_TYPES, f"{least!r} and {most!r}")
        if _SIGNS[">"](least, most):
            raise ValidationException(Refusal.BOUNDS_CROSSED, f"{low} = {least!r}, {high} = {most!r}")

    return check


def _read(operand: Operand) -> Read:
    match operand:
        case Given(name):
            return lambda _item, values: values[name]
        case Size(inner):
            measured = _read(inner)
            return lambda item, values: _size(measured(item, values))
        case Path(parts) if len(parts) == 1:
            attribute = operand.attribute
            return lambda item, _values: item.get(attribute, MISSING)
        case Path(parts):
            return lambda item, _values: _at(item, parts)


def _size(value: object) -> object:
    if isinstance(value, str):
        return len(value.encode())
    return len(value) if isinstance(value, list | dict) else MISSING


def _at(item: Item, parts: tuple[str | int, ...]) -> object:
    found: object = item
    for part in parts:
        if isinstance(part, str) and isinstance(found, dict):
            found = found.get(part, MISSING)
        elif isinstance(part, int) and isinstance(found, list) and part < len(found):
            found = found[part]
        else:
            return MISSING
    return found


def _write(action: Action, checks: list[Check]) -> Write:
    parts = action.path.parts
    if action.verb == "REMOVE":
        return lambda _old, new, _values: _remove(new, parts)
    assert action.source is not None
    if action.verb == "ADD":
        assert isinstance(action.source, Given)
        return _add(action.path, action.source.name, checks)
    source = _term(action.source, checks)
    if len(parts) == 1:
        attribute = action.path.attribute

        def write(old: Item, new: Item, values: Values) -> None:
            new[attribute] = source(old, values)

        return write
    return lambda old, new, values: _put(new, parts, source(old, values))


def _add(path: Path, given: str, checks: list[Check]) -> Write:
    checks.append(_of_type(given, (int,)))
    attribute, parts = path.attribute, path.parts

    def add(old: Item, new: Item, values: Values) -> None:
        amount = values[given]
        before = old.get(attribute, MISSING) if len(parts) == 1 else _at(old, parts)
        total = amount if before is MISSING else _sum(before, "+", amount)
        if len(parts) == 1:
            new[attribute] = total
        else:
            _put(new, parts, total)

    return add


def _term(term: Term, checks: list[Check]) -> Callable[[Item, Values], Value]:
    match term:
        case Given(name):
            return lambda _item, values: values[name]
        case Path(parts):
            return lambda item, _values: _existing(item, parts)
        case IfNotExists(path, fallback):
            otherwise = _term(fallback, checks)

            def first_there(item: Item, values: Values) -> Value:
                found = _at(item, path.parts)
                return otherwise(item, values) if found is MISSING else _as_value(found)

            return first_there
        case Sum(left, sign, right):
            checks += [_of_type(part.name, (int,)) for part in (left, right) if isinstance(part, Given)]
            one, other = _term(left, checks), _term(right, checks)
            return lambda item, values: _sum(one(item, values), sign, other(item, values))


def _existing(item: Item, parts: tuple[str | int, ...]) -> Value:
    found = _at(item, parts)
    if found is MISSING:
        raise ValidationException(Refusal.MISSING_ATTRIBUTE, str(parts))
    return _as_value(found)


def _as_value(found: object) -> Value:
    assert found is None or isinstance(found, str | int | list | dict)
    return found


def _sum(left: object, sign: str, right: object) -> int:
    if type(left) is not int or type(right) is not int:
        raise ValidationException(Refusal.STORED_TYPE, f"{left!r} {sign} {right!r}")
    total = left + right if sign == "+" else left - right
    check_number(total, Refusal.RESULT_DIGITS)
    return total


def _put(item: Item, parts: tuple[str | int, ...], value: Value) -> None:
    holder, last = _holder(item, parts), parts[-1]
    if isinstance(holder, dict) and isinstance(last, str):
        holder[last] = value
    elif isinstance(holder, list) and isinstance(last, int):
        holder[last : last + 1] = [value]
    else:
        raise ValidationException(Refusal.PATH_INVALID, str(parts))


def _remove(item: Item, parts: tuple[str | int, ...]) -> None:
    holder, last = _holder(item, parts), parts[-1]
    if isinstance(holder, dict) and isinstance(last, str):
        holder.pop(last, None)
    elif isinstance(holder, list) and isinstance(last, int):
        del holder[last : last + 1]
    else:
        raise ValidationException(Refusal.PATH_INVALID, str(parts))


def _holder(item: Item, parts: tuple[str | int, ...]) -> object:
    """What the last part of a path is in. The item must be a whole copy: it is changed in place."""
    return item if len(parts) == 1 else _at(item, parts[:-1])
