"""Where a list goes on, as a text that only we can make.

A cursor is signed for its namespace, its list and the arguments of that list, so it opens nothing else.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sluice.core.errors import InvalidRequest
from sluice.repository.wire import Item
from sluice.services.signing import Signer


@dataclass(frozen=True, slots=True)
class Position:
    """Behind `after` in a partition of the list. `within`: how far into what follows there, for what has parts."""

    partition: int = 0
    after: Item | None = None
    within: tuple[str, ...] = ()


START: Final = Position()


class Cursors:
    def __init__(self, signer: Signer) -> None:
        self._signer = signer

    def write(self, purpose: Sequence[str], position: Position) -> str:
        payload = json.dumps([position.partition, position.after, position.within], separators=(",", ":"))
        return self._signer.sign(_purpose(purpose), payload.encode())

    def read(self, purpose: Sequence[str], cursor: str | None) -> Position:
        if cursor is None:
            return START
        payload = self._signer.verify(_purpose(purpose), cursor)
        if payload is None:
            raise InvalidRequest("cursor", "is not a cursor of this list")
        partition, after, within = json.loads(payload)
        return Position(partition, after, tuple(within))


def _purpose(parts: Sequence[str]) -> str:
    # As JSON, so that no two lists of arguments read the same.
    return "cursor " + json.dumps(list(parts))
