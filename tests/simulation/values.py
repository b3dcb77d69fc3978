"""Values as the table sees them: which are valid, when two are the same, how large an item is."""

from collections.abc import Callable, Mapping
from typing import Final

from sluice.repository.wire import Item, Value
from tests.simulation.refusals import Refusal, ValidationException

DIGITS_MAX: Final = 38
EXPONENT_MAX: Final = 125
NESTING_MAX: Final = 32
ITEM_BYTES_MAX: Final = 400 * 1024
_PLAIN_MAX: Final = 10**DIGITS_MAX
_CONTAINER_BYTES: Final = 3
_UTF8_BYTES_MAX: Final = 4
_NUMBER_BYTES_MAX: Final = 21
_PLAIN: Final = frozenset({str, int, bool, type(None)})

ORDERED: Final = (int, str)
"""The types that `<` knows. bool is an int to Python, so types are compared, never asked for with isinstance."""


def same(one: object, other: object) -> bool:
    """Equal, and of the same type at every depth."""
    kind = type(one)
    if kind is not type(other):
        return False
    if kind is list:
        assert isinstance(one, list)
        assert isinstance(other, list)
        return len(one) == len(other) and all(map(same, one, other))
    if kind is dict:
        assert isinstance(one, dict)
        assert isinstance(other, dict)
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    return one == other


def type_name(value: object) -> str:
    """As in DynamoDB's JSON."""
    names: dict[type, str] = {int: "N", str: "S", bool: "BOOL", type(None): "NULL", list: "L", dict: "M"}
    return names[type(value)]


def check_value(value: Value, depth: int = 0) -> None:
    kind = type(value)
    if kind is str:
        return
    if kind is int:
        check_number(value, Refusal.NUMBER_DIGITS)
    elif isinstance(value, list):
        _check_depth(depth)
        for element in value:
            check_value(element, depth + 1)
    elif isinstance(value, dict):
        _check_depth(depth)
        for name, member in value.items():
            if not name:
                raise ValidationException(Refusal.ATTRIBUTE_NAME)
            if type(member) is not str:
                check_value(member, depth + 1)
    elif kind not in _PLAIN:
        raise TypeError(f"no attribute value for {kind.__name__}")


def check_number(number: object, refusal: Refusal) -> None:
    assert isinstance(number, int)
    if -_PLAIN_MAX < number < _PLAIN_MAX:
        return
    digits = str(abs(number))
    if len(digits) > EXPONENT_MAX + 1:
        raise ValidationException(Refusal.NUMBER_RANGE, digits)
    if len(digits.rstrip("0")) > DIGITS_MAX:
        raise ValidationException(refusal, digits)


def _check_depth(depth: int) -> None:
    if depth >= NESTING_MAX:
        raise ValidationException(Refusal.NESTING)


def is_flat(item: Mapping[str, Value]) -> bool:
    """Whether a shallow copy is a whole one."""
    return _PLAIN.issuperset(map(type, item.values()))


def copied(item: Mapping[str, Value]) -> Item:
    return {name: value if type(value) in _PLAIN else _copied_value(value) for name, value in item.items()}


def _copied_value(value: Value) -> Value:
    if isinstance(value, dict):
        return copied(value)
    if isinstance(value, list):
        return [_copied_value(element) for element in value]
    return value


def text_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def item_bytes(item: Mapping[str, Value]) -> int:
    return sum(text_bytes(name) + value_bytes(value) for name, value in item.items())


def item_bytes_most(item: Mapping[str, Value]) -> int:
    """Not less than `item_bytes`, and quick: nearly every item is far from being too large."""
    most = _UTF8_BYTES_MAX * len("".join(item)) + _NUMBER_BYTES_MAX * len(item)
    for value in item.values():
        if type(value) is str:
            most += _UTF8_BYTES_MAX * len(value)
        elif isinstance(value, dict):
            most += _CONTAINER_BYTES + len(value) + item_bytes_most(value)
        elif isinstance(value, list):
            most += value_bytes(value)
    return most


def value_bytes(value: Value) -> int:
    if isinstance(value, str):
        return text_bytes(value)
    if isinstance(value, bool) or value is None:
        return 1
    if isinstance(value, int):
        return (len(str(abs(value)).rstrip("0")) + 1) // 2 + 1 + (value < 0)
    if isinstance(value, list):
        return _CONTAINER_BYTES + sum(1 + value_bytes(element) for element in value)
    return _CONTAINER_BYTES + sum(1 + text_bytes(name) + value_bytes(member) for name, member in value.items())


def ordered(test: Callable[[object, object], bool]) -> Callable[[object, object], bool]:
    """A comparison that is false between types, and for types without an order."""

    def compare(left: object, right: object) -> bool:
        kind = type(left)
        return kind is type(right) and kind in ORDERED and test(left, right)

    return compare
