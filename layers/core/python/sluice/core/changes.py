"""Fields of a change that may be left out."""

from typing import Final, TypeVar

T = TypeVar("T")


class Unset:
    """A field that was not sent: it keeps its value. None clears it."""


UNSET: Final = Unset()


def kept(sent: T | Unset | None, before: T, default: T) -> T:
    """What a field is after a change."""
    if isinstance(sent, Unset):
        return before
    return default if sent is None else sent
