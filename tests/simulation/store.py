"""The store over the simulated table: the same values, errors and retry loop as `DynamoStore`, another wire.

What the wire raises (throttled, conflicting, not sent, lost) goes through the product's own `Retries`.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from sluice.repository.keys import Key, key_of
from sluice.repository.requests import (
    DeleteRequest,
    PutRequest,
    QueryRequest,
    ScanRequest,
    TransactWrite,
    UpdateRequest,
)
from sluice.repository.retries import Rebuild, Retries, Throttled, Transaction
from sluice.repository.store import (
    BATCH_KEYS_MAX,
    UNPROCESSED_ROUNDS_MAX,
    Applied,
    ConditionFailed,
    Outcome,
    Page,
    TransactOutcome,
)
from sluice.repository.wire import Item
from tests.simulation import queries
from tests.simulation.paths import Path, path_of_delete, path_of_put, path_of_transaction, path_of_update
from tests.simulation.queries import Visible, as_it_is
from tests.simulation.refusals import Refusal, ValidationException
from tests.simulation.table import SimulatedTable

T = TypeVar("T")


class Call(NamedTuple):
    """One request on its way. `about`: the key or partition, for the trace. `path`: of a write."""

    verb: str
    about: object
    writes: bool
    path: Path | None = None

    @property
    def is_transaction(self) -> bool:
        return self.verb == "transact"


class Wire(Protocol):
    """Between a client and the table. May lose, refuse, delay or repeat nothing: each call is carried once."""

    def carry(self, call: Call, apply: Callable[[], T]) -> T:
        """Runs `apply` at the table, or raises what the retry loop knows, before or after it."""

    def read_lag_ms(self) -> int:
        """How old the item is that a read without consistency sees."""

    def processed(self, keys: int) -> int:
        """How many keys of a batch are answered."""

    def page_cut(self) -> int | None:
        """After how many items a page ends, if before its time."""


class PerfectWire:
    """Nothing goes wrong and nothing takes time."""

    def carry(self, call: Call, apply: Callable[[], T]) -> T:
        return apply()

    def read_lag_ms(self) -> int:
        return 0

    def processed(self, keys: int) -> int:
        return keys

    def page_cut(self) -> int | None:
        return None


class SimulatedStore:
    def __init__(self, table: SimulatedTable, wire: Wire, retries: Retries) -> None:
        self.table = table
        self._wire = wire
        self._retries = retries

    def get(self, key: Key, *, consistent: bool = False) -> Item | None:
        return self._read(Call("get", key, writes=False), lambda: self._seen(key, consistent=consistent))

    def batch_get(self, keys: Sequence[Key], *, consistent: bool = False) -> list[Item]:
        items: list[Item] = []
        for start in range(0, len(keys), BATCH_KEYS_MAX):
            pending = list(keys[start : start + BATCH_KEYS_MAX])
            for attempt in range(UNPROCESSED_ROUNDS_MAX):
                found, pending = self._batch(pending, consistent=consistent)
                items += found
                if not pending:
                    break
                self._retries.pause(attempt)
            else:
                raise self._retries.exhausted("keys stayed unprocessed")
        return items

    def put(self, request: PutRequest, *, repeatable: bool) -> Outcome:
        call = Call("put", key_of(request["Item"]), writes=True, path=path_of_put(request))
        return self._write(call, lambda: self.table.put(request), repeatable=repeatable)

    def update(self, request: UpdateRequest, *, repeatable: bool) -> Outcome:
        call = Call("update", key_of(request["Key"]), writes=True, path=path_of_update(request))
        return self._write(call, lambda: self.table.update(request), repeatable=repeatable)

    def delete(self, request: DeleteRequest) -> Outcome:
        call = Call("delete", key_of(request["Key"]), writes=True, path=path_of_delete(request))
        return self._write(call, lambda: self.table.delete(request), repeatable=True)

    def transact(
        self, writes: Sequence[TransactWrite], token: str, *, rebuild: Rebuild | None = None
    ) -> TransactOutcome:
        path = path_of_transaction(writes)

        def send(transaction: Transaction) -> TransactOutcome:
            call = Call("transact", transaction.token, writes=True, path=path)
            return self._wire.carry(call, lambda: self.table.transact(*transaction))

        return self._retries.run_transaction(send, Transaction(writes, token), rebuild)

    def query(self, request: QueryRequest) -> Page:
        call = Call("query", request.get("ExpressionAttributeValues"), writes=False)
        return self._read(call, lambda: queries.query(self.table, request, self._view(request), self._wire.page_cut()))

    def scan(self, request: ScanRequest) -> Page:
        call = Call("scan", request.get("IndexName"), writes=False)
        return self._read(call, lambda: queries.scan(self.table, request, self._view(request), self._wire.page_cut()))

    def _seen(self, key: Key, *, consistent: bool) -> Item | None:
        lag_ms = 0 if consistent else self._wire.read_lag_ms()
        return self.table.get(key, as_of_ms=self.table.clock_ms() - lag_ms if lag_ms else None)

    def _view(self, request: ScanRequest) -> Visible:
        if request.get("ConsistentRead"):
            return as_it_is
        lag_ms = self._wire.read_lag_ms()
        if not lag_ms:
            return as_it_is
        seen_ms = self.table.clock_ms() - lag_ms
        return lambda stored: stored.as_of(seen_ms)

    def _batch(self, keys: list[Key], *, consistent: bool) -> tuple[list[Item], list[Key]]:
        def apply() -> tuple[list[Item], list[Key]]:
            if len(set(keys)) < len(keys):
                raise ValidationException(Refusal.BATCH_DUPLICATES)
            answered = self._wire.processed(len(keys))
            found = [self._seen(key, consistent=consistent) for key in keys[:answered]]
            return [item for item in found if item is not None], keys[answered:]

        return self._read(Call("batch_get", keys[0], writes=False), apply)

    def _read(self, call: Call, apply: Callable[[], T]) -> T:
        return self._retries.run(lambda _repeated: self._wire.carry(call, apply), repeatable=True, writes=False)

    def _write(self, call: Call, apply: Callable[[], Outcome], *, repeatable: bool) -> Outcome:
        hot_key = False

        def send(repeated: bool) -> Outcome:
            nonlocal hot_key
            try:
                outcome = self._wire.carry(call, apply)
            except Throttled as throttled:
                hot_key = hot_key or throttled.hot_key
                raise
            if isinstance(outcome, ConditionFailed):
                return ConditionFailed(outcome.item, repeated, hot_key)
            return Applied(outcome.item, hot_key)

        return self._retries.run(send, repeatable=repeatable, writes=True)
