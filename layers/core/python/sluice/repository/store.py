"""The one place that talks to DynamoDB. Eight verbs; a failed condition is a value, not an exception.

`Store` is a Protocol because there are two implementations: the table through boto3, and a simulated table that drives
the same services under faults.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from botocore.exceptions import ClientError, ConnectTimeoutError, EndpointConnectionError, HTTPClientError
from botocore.exceptions import ConnectionError as ClientConnectionError

from sluice.core.errors import Ambiguous
from sluice.repository.keys import Key
from sluice.repository.requests import (
    DeleteRequest,
    PutRequest,
    QueryRequest,
    ScanRequest,
    TransactWrite,
    UpdateRequest,
)
from sluice.repository.retries import Conflict, NotSent, Rebuild, Retries, Throttled, Transaction
from sluice.repository.wire import Item, WireItem, item_from_wire, item_to_wire

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

BATCH_KEYS_MAX: Final = 100
UNPROCESSED_ROUNDS_MAX: Final = 10

_THROTTLES: Final = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "Throttling",
        "ThrottlingException",
        "ThrottlingError",
        "ProvisionedThroughputExceeded",
    }
)
_CONFLICTS: Final = frozenset({"TransactionConflictException", "TransactionInProgressException", "TransactionConflict"})
_CONDITION_FAILED: Final = "ConditionalCheckFailed"


@dataclass(frozen=True, slots=True)
class Applied:
    """The write happened. `item`: all attributes after an update, before a put or delete.

    `hot_key`: an earlier try was throttled because of this key alone.
    """

    item: Item | None
    hot_key: bool = False


@dataclass(frozen=True, slots=True)
class ConditionFailed:
    """Nothing was written. `item`: as it is, or None where there is none.

    `repeated`: an earlier try of the same request lost its answer, so the item may show that very write.
    `hot_key`: an earlier try was throttled because of this key alone.
    """

    item: Item | None
    repeated: bool = False
    hot_key: bool = False


Outcome = Applied | ConditionFailed


@dataclass(frozen=True, slots=True)
class Committed:
    """Every write of the transaction happened."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """No write of the transaction happened. One element per write: None where its condition held."""

    failures: tuple[ConditionFailed | None, ...]


TransactOutcome = Committed | Cancelled


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a query or scan; `next_start` continues it."""

    items: tuple[Item, ...]
    next_start: Item | None


class Store(Protocol):
    def get(self, key: Key, *, consistent: bool = False) -> Item | None: ...

    def batch_get(self, keys: Sequence[Key], *, consistent: bool = False) -> list[Item]: ...

    def put(self, request: PutRequest, *, repeatable: bool) -> Outcome: ...

    def update(self, request: UpdateRequest, *, repeatable: bool) -> Outcome: ...

    def delete(self, request: DeleteRequest) -> Outcome: ...

    def transact(
        self, writes: Sequence[TransactWrite], token: str, *, rebuild: Rebuild | None = None
    ) -> TransactOutcome: ...

    def query(self, request: QueryRequest) -> Page: ...

    def scan(self, request: ScanRequest) -> Page: ...


class DynamoStore:
    """The table through boto3. The client must be made with one attempt per call: see `shell.py`."""

    def __init__(self, client: "DynamoDBClient", table: str, retries: Retries) -> None:
        # The stubs want literal types for what is built from plain dictionaries here.
        self._client: Any = client
        self._table = table
        self._retries = retries

    def get(self, key: Key, *, consistent: bool = False) -> Item | None:
        answer = self._read(
            self._client.get_item, {"Key": item_to_wire(dict(key.attributes)), "ConsistentRead": consistent}
        )
        return item_from_wire(answer["Item"]) if "Item" in answer else None

    def batch_get(self, keys: Sequence[Key], *, consistent: bool = False) -> list[Item]:
        """All items that exist, in no order. Asks again until no key is left unprocessed."""
        items: list[Item] = []
        for start in range(0, len(keys), BATCH_KEYS_MAX):
            chunk = keys[start : start + BATCH_KEYS_MAX]
            pending = {
                self._table: {
                    "Keys": [item_to_wire(dict(key.attributes)) for key in chunk],
                    "ConsistentRead": consistent,
                }
            }
            for attempt in range(UNPROCESSED_ROUNDS_MAX):
                answer = self._send_read(self._client.batch_get_item, {"RequestItems": pending})
                items += [item_from_wire(wire) for wire in answer["Responses"].get(self._table, [])]
                pending = answer.get("UnprocessedKeys") or {}
                if not pending:
                    break
                self._retries.pause(attempt)
            else:
                raise self._retries.exhausted("keys stayed unprocessed")
        return items

    def put(self, request: PutRequest, *, repeatable: bool) -> Outcome:
        return self._write(self._client.put_item, request, "ALL_OLD", repeatable=repeatable)

    def update(self, request: UpdateRequest, *, repeatable: bool) -> Outcome:
        return self._write(self._client.update_item, request, "ALL_NEW", repeatable=repeatable)

    def delete(self, request: DeleteRequest) -> Outcome:
        return self._write(self._client.delete_item, request, "ALL_OLD", repeatable=True)

    def transact(
        self, writes: Sequence[TransactWrite], token: str, *, rebuild: Rebuild | None = None
    ) -> TransactOutcome:
        """Repeated byte for byte under its token, which makes it happen once.

        `rebuild`: what is sent instead after a conflict, for a transaction that can do with other items.
        """

        def send(transaction: Transaction) -> TransactOutcome:
            try:
                with _translated():
                    self._client.transact_write_items(
                        TransactItems=[self._element(write) for write in transaction.writes],
                        ClientRequestToken=transaction.token,
                    )
            except _TransactionCancelled as cancelled:
                return cancelled.outcome()
            return Committed()

        return self._retries.run_transaction(send, Transaction(writes, token), rebuild)

    def query(self, request: QueryRequest) -> Page:
        return self._page(self._client.query, request)

    def scan(self, request: ScanRequest) -> Page:
        return self._page(self._client.scan, request)

    def _element(self, write: TransactWrite) -> dict[str, Any]:
        return {
            verb: {
                **_request_to_wire(cast("Mapping[str, Any]", request)),
                "TableName": self._table,
                "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
            }
            for verb, request in write.items()
        }

    def _page(self, call: Callable[..., Any], request: QueryRequest | ScanRequest) -> Page:
        answer = self._read(call, _request_to_wire(cast("Mapping[str, Any]", request)))
        last = answer.get("LastEvaluatedKey")
        return Page(
            items=tuple(item_from_wire(wire) for wire in answer["Items"]),
            next_start=item_from_wire(last) if last else None,
        )

    def _read(self, call: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        return self._send_read(call, {**arguments, "TableName": self._table})

    def _send_read(self, call: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        def send(_repeated: bool) -> Any:
            with _translated():
                return call(**arguments)

        return self._retries.run(send, repeatable=True, writes=False)

    def _write(
        self,
        call: Callable[..., Any],
        request: PutRequest | UpdateRequest | DeleteRequest,
        return_values: str,
        *,
        repeatable: bool,
    ) -> Outcome:
        arguments = _request_to_wire(cast("Mapping[str, Any]", request))
        arguments["TableName"] = self._table
        arguments["ReturnValues"] = return_values
        arguments["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"

        hot_key = False

        def send(repeated: bool) -> Outcome:
            nonlocal hot_key
            try:
                with _translated():
                    answer = call(**arguments)
            except _ItemConditionFailed as failed:
                return ConditionFailed(failed.item, repeated, hot_key)
            except Throttled as throttled:
                hot_key = hot_key or throttled.hot_key
                raise
            return Applied(_optional_item(answer.get("Attributes")), hot_key)

        return self._retries.run(send, repeatable=repeatable, writes=True)


class _ItemConditionFailed(Exception):
    def __init__(self, item: Item | None) -> None:
        super().__init__()
        self.item = item


class _TransactionCancelled(Exception):
    def __init__(self, reasons: Sequence[Mapping[str, Any]]) -> None:
        super().__init__()
        self._reasons = reasons

    def outcome(self) -> Cancelled:
        return Cancelled(
            tuple(
                ConditionFailed(_optional_item(reason.get("Item"))) if reason["Code"] == _CONDITION_FAILED else None
                for reason in self._reasons
            )
        )


@contextmanager
def _translated() -> Iterator[None]:
    """Turns what botocore raises into what the retry loop knows. Anything else is a bug and passes through."""
    try:
        yield
    except ClientError as error:
        raise _translation(error) from error
    except (EndpointConnectionError, ConnectTimeoutError) as error:
        raise NotSent(type(error).__name__) from error
    except (ClientConnectionError, HTTPClientError) as error:
        raise Ambiguous(type(error).__name__) from error


def _translation(error: ClientError) -> Exception:
    response = cast("Mapping[str, Any]", error.response)
    code = response["Error"]["Code"]
    if code == "ConditionalCheckFailedException":
        return _ItemConditionFailed(_optional_item(response.get("Item")))
    if code == "TransactionCanceledException":
        return _cancellation(error, response["CancellationReasons"])
    if code in _THROTTLES:
        return Throttled(code, hot_key=_is_hot_key(response))
    if code in _CONFLICTS:
        return Conflict(code)
    if response["ResponseMetadata"]["HTTPStatusCode"] >= 500:
        return Ambiguous(code)
    return error


def _is_hot_key(response: Mapping[str, Any]) -> bool:
    # The same list, spelled differently from one exception to the next.
    reasons = response.get("ThrottlingReasons") or response.get("throttlingReasons") or ()
    return any("TableWriteKeyRange" in str(reason.get("reason")) for reason in reasons)


def _cancellation(error: ClientError, reasons: Sequence[Mapping[str, Any]]) -> Exception:
    codes = {reason["Code"] for reason in reasons}
    # A failed condition decides: repeating the transaction could not change it.
    if _CONDITION_FAILED in codes:
        return _TransactionCancelled(reasons)
    if codes & _CONFLICTS:
        return Conflict("TransactionConflict")
    if codes & _THROTTLES:
        return Throttled("ThrottlingError")
    return error


def _request_to_wire(request: Mapping[str, Any]) -> dict[str, Any]:
    wire = dict(request)
    for part in ("Key", "Item", "ExpressionAttributeValues", "ExclusiveStartKey"):
        if part in wire:
            wire[part] = item_to_wire(wire[part])
    return wire


def _optional_item(wire: WireItem | None) -> Item | None:
    return item_from_wire(wire) if wire else None
