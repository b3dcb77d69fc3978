"""Reading attributes strictly. A shape that is not known raises: nobody guesses."""

from collections.abc import Mapping

from sluice.repository.wire import Value


class UnknownShape(Exception):
    """An item that this code did not write, or no longer understands."""

    def __init__(self, item: Mapping[str, Value], why: str) -> None:
        super().__init__(f"item of kind {item.get('kind')!r}: {why}")


def check_kind(item: Mapping[str, Value], kind: str) -> None:
    if item.get("kind") != kind:
        raise UnknownShape(item, f"expected kind {kind!r}")


def text(item: Mapping[str, Value], attribute: str) -> str:
    value = item.get(attribute)
    if not isinstance(value, str):
        raise UnknownShape(item, f"{attribute} is not a text")
    return value


def optional_text(item: Mapping[str, Value], attribute: str) -> str | None:
    return text(item, attribute) if attribute in item else None


def whole(item: Mapping[str, Value], attribute: str) -> int:
    value = item.get(attribute)
    if type(value) is not int:
        raise UnknownShape(item, f"{attribute} is not a whole number")
    return value


def optional_whole(item: Mapping[str, Value], attribute: str) -> int | None:
    return whole(item, attribute) if attribute in item else None


def texts(item: Mapping[str, Value], attribute: str) -> tuple[str, ...]:
    """A list of texts; an absent one is empty."""
    values = item.get(attribute, [])
    if not isinstance(values, list):
        raise UnknownShape(item, f"{attribute} is not a list")
    found = tuple(value for value in values if isinstance(value, str))
    if len(found) != len(values):
        raise UnknownShape(item, f"{attribute} has elements that are not texts")
    return found


def wholes(item: Mapping[str, Value], attribute: str) -> dict[str, int]:
    """A map of whole numbers; an absent one is empty."""
    values = item.get(attribute, {})
    if not isinstance(values, dict):
        raise UnknownShape(item, f"{attribute} is not a map")
    found = {name: value for name, value in values.items() if isinstance(value, int) and not isinstance(value, bool)}
    if len(found) != len(values):
        raise UnknownShape(item, f"{attribute} has members that are not whole numbers")
    return found
