"""The last events of a simulation, put into words only when somebody reads them."""

from collections import deque
from typing import Final

from sluice.repository.keys import Key
from sluice.repository.store import Applied, Cancelled, ConditionFailed, Page
from tests.simulation.faults import Fault
from tests.simulation.store import Call

EVENTS_KEPT: Final = 60
_SHOWN: Final = ("v", "lh", "gen", "shard_count", "ttl")


Event = tuple[int, str, object, object]
"""The time, who, what and the answer: a plain tuple, as there is one for every call."""


class Trace:
    def __init__(self, start_ms: int, kept: int = EVENTS_KEPT) -> None:
        self._start_ms = start_ms
        self._events: deque[Event] = deque(maxlen=kept)

    def add(self, time_ms: int, who: str, what: object, answer: object) -> None:
        self._events.append((time_ms, who, what, answer))

    def lines(self) -> list[str]:
        return [
            f"{time_ms - self._start_ms:>10,} ms  {who:<10} {_words(what)}: {_words(answer)}"
            for time_ms, who, what, answer in self._events
        ]


def _words(event: object) -> str:
    match event:
        case Call(verb, about, _):
            words = f"{verb} {_words(about)}"
        case Key(pk, sk):
            words = f"{pk} {sk}"
        case Fault():
            words = f"*** {event.value}"
        case Applied(item):
            words = f"applied {_item(item)}"
        case ConditionFailed(item):
            words = f"condition failed {_item(item)}"
        case Cancelled(failures):
            words = "cancelled by " + "; ".join(_words(failure) for failure in failures if failure is not None)
        case Page(items, _):
            words = f"{len(items)} items"
        case dict():
            words = _item(event)
        case _:
            words = str(event)[:200]
    return words


def _item(item: object) -> str:
    """The attributes that the write paths turn on."""
    if not isinstance(item, dict):
        return "no item"
    names = [name for name in item if name in _SHOWN or name.endswith(("_tk", "_tc"))]
    return " ".join(f"{name}={item[name]}" for name in names) or str(item)[:120]
