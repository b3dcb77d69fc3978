"""A table that writes down what it is asked to write, so that an engine can be asked the same."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from sluice.repository.keys import Key
from sluice.repository.requests import DeleteRequest, PutRequest, TransactWrite, UpdateRequest
from sluice.repository.store import Outcome, Store, TransactOutcome
from sluice.repository.wire import Item
from tests.simulation.table import SimulatedTable


class Entry(NamedTuple):
    """One write, what came of it, and how to send it to a store."""

    text: str
    outcome: object
    send: Callable[[Store], object]


class JournalingTable(SimulatedTable):
    def __init__(self) -> None:
        super().__init__()
        self.journal: list[Entry] = []

    def put(self, request: PutRequest) -> Outcome:
        outcome = super().put(request)
        self.journal.append(Entry(f"put {request}", outcome, lambda store: store.put(request, repeatable=False)))
        return outcome

    def update(self, request: UpdateRequest) -> Outcome:
        outcome = super().update(request)
        self.journal.append(Entry(f"update {request}", outcome, lambda store: store.update(request, repeatable=False)))
        return outcome

    def delete(self, request: DeleteRequest) -> Outcome:
        outcome = super().delete(request)
        self.journal.append(Entry(f"delete {request}", outcome, lambda store: store.delete(request)))
        return outcome

    def transact(self, writes: Sequence[TransactWrite], token: str) -> TransactOutcome:
        outcome = super().transact(writes, token)
        self.journal.append(Entry(f"transact {writes}", outcome, lambda store: store.transact(writes, token)))
        return outcome

    def expire(self, key: Key) -> None:
        before = self.get(key)
        super().expire(key)
        if before is not None and self.get(key) is None:
            self.journal.append(Entry(f"expire {key}", before, lambda store: _deleted(store, key)))


def _deleted(store: Store, key: Key) -> Item | None:
    return store.delete({"Key": {**key.attributes}}).item
