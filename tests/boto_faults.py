"""Faults between boto3 and a real engine: a hook before each request throttles, fails, or forwards and then denies it.

What is forwarded really happens; what the client is then told is that it does not know. `TIMEOUT_LATE` is the worst of
these: the client has given up, and perhaps tried again, before the request arrives.
"""

import json
from collections import Counter
from enum import StrEnum
from io import BytesIO
from random import Random
from threading import Lock
from typing import Any, Final

from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.compat import HTTPHeaders
from botocore.exceptions import (
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    ReadTimeoutError,
)
from botocore.httpsession import URLLib3Session
from mypy_boto3_dynamodb import DynamoDBClient

# After so many further requests, by whomever, a late one arrives at the latest.
LATE_MOST: Final = 60


class Fault(StrEnum):
    THROTTLED = "throttled"
    HOT_KEY = "throttled on its key"
    CONFLICT = "conflict"
    IN_PROGRESS = "transaction in progress"
    UNPROCESSED = "keys left unprocessed"
    ERROR_BEFORE = "error, not applied"
    ERROR_AFTER = "error, applied"
    NOT_CONNECTED = "not connected"
    CONNECT_TIMEOUT = "timeout while connecting"
    TIMEOUT_BEFORE = "timeout, not applied"
    TIMEOUT_AFTER = "timeout, applied"
    TIMEOUT_LATE = "timeout, applied later"
    CLOSED_BEFORE = "connection closed, not applied"
    CLOSED_AFTER = "connection closed, applied"


OF_READS: Final = (
    Fault.THROTTLED,
    Fault.ERROR_BEFORE,
    Fault.NOT_CONNECTED,
    Fault.CONNECT_TIMEOUT,
    Fault.TIMEOUT_BEFORE,
    Fault.CLOSED_BEFORE,
)
OF_WRITES: Final = (
    *OF_READS,
    Fault.CONFLICT,
    Fault.ERROR_AFTER,
    Fault.TIMEOUT_AFTER,
    Fault.TIMEOUT_LATE,
    Fault.CLOSED_AFTER,
)
OF_PLAIN_WRITES: Final = (*OF_WRITES, Fault.HOT_KEY)
FAULTS: Final = {
    "GetItem": OF_READS,
    "BatchGetItem": (*OF_READS, Fault.UNPROCESSED),
    "Query": OF_READS,
    "Scan": OF_READS,
    "PutItem": OF_PLAIN_WRITES,
    "UpdateItem": OF_PLAIN_WRITES,
    "DeleteItem": OF_PLAIN_WRITES,
    "TransactWriteItems": (*OF_WRITES, Fault.IN_PROGRESS),
}
_APPLIED: Final = frozenset({Fault.ERROR_AFTER, Fault.TIMEOUT_AFTER, Fault.CLOSED_AFTER})
_TYPE: Final = "com.amazonaws.dynamodb.v20120810#"

Met = Counter[tuple[str, Fault]]
"""How often each verb met each fault."""


class Late:
    """Requests that were given up and are still on their way, in the order in which they will arrive."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._session = URLLib3Session(proxies={})
        self._lock = Lock()
        self._waiting: list[tuple[int, AWSPreparedRequest]] = []
        self._requests = 0

    def hold(self, request: AWSPreparedRequest) -> None:
        with self._lock:
            self._waiting.append((self._requests + self._random.randint(1, LATE_MOST), request))

    def pass_on(self, *, everything: bool = False) -> None:
        """Called with each further request; at the end of a round for all that is left."""
        with self._lock:
            self._requests += 1
            due = [one for one in self._waiting if everything or one[0] <= self._requests]
            self._waiting = [one for one in self._waiting if one not in due]
        for _, request in due:
            self._session.send(request)


class Interference:
    """The hook of one client. `rate`: the share of its requests that meet a fault."""

    def __init__(self, client: DynamoDBClient, seed: str, late: Late) -> None:
        self.rate = 0.0
        self.met: Met = Counter()
        self._random = Random(seed)
        self._late = late
        self._session = URLLib3Session(proxies={}, max_pool_connections=10)
        self._lock = Lock()
        hook: Any = self._before_send  # the stubs do not know that a hook may answer
        client.meta.events.register("before-send.dynamodb", hook)

    def _before_send(self, request: AWSPreparedRequest, **_named: Any) -> AWSResponse | None:
        """An answer in place of the request, or None to send it. What it raises, the client raises."""
        self._late.pass_on()
        verb = _verb(request)
        with self._lock:
            fault = self._random.choice(FAULTS[verb]) if self._random.random() < self.rate else None
            if fault is None:
                return None
            self.met[verb, fault] += 1
        if fault in _APPLIED:
            self._session.send(request)
        elif fault is Fault.TIMEOUT_LATE:
            self._late.hold(request)
        return _answer(fault, verb, request)


def _verb(request: AWSPreparedRequest) -> str:
    target = request.headers["X-Amz-Target"]
    text = target.decode() if isinstance(target, bytes) else str(target)
    return text.partition(".")[2]


def _answer(fault: Fault, verb: str, request: AWSPreparedRequest) -> AWSResponse:
    url = str(request.url)
    match fault:
        case Fault.THROTTLED:
            return _error(url, 400, "ProvisionedThroughputExceededException")
        case Fault.HOT_KEY:
            reasons = [{"reason": "TableWriteKeyRangeThroughputExceeded", "resource": "arn:aws:dynamodb:table"}]
            return _error(url, 400, "ThrottlingException", throttlingReasons=reasons)
        case Fault.IN_PROGRESS:
            return _error(url, 400, "TransactionInProgressException")
        case Fault.CONFLICT:
            return _conflict(url, verb, request)
        case Fault.UNPROCESSED:
            return _unprocessed(url, request)
        case Fault.ERROR_BEFORE | Fault.ERROR_AFTER:
            return _error(url, 500, "InternalServerError")
        case Fault.NOT_CONNECTED:
            raise EndpointConnectionError(endpoint_url=url)
        case Fault.CONNECT_TIMEOUT:
            raise ConnectTimeoutError(endpoint_url=url)
        case Fault.CLOSED_BEFORE | Fault.CLOSED_AFTER:
            raise ConnectionClosedError(endpoint_url=url)
        case _:
            raise ReadTimeoutError(endpoint_url=url)


def _conflict(url: str, verb: str, request: AWSPreparedRequest) -> AWSResponse:
    if verb != "TransactWriteItems":
        return _error(url, 400, "TransactionConflictException")
    elements = _body(request)["TransactItems"]
    reasons = [{"Code": "TransactionConflict", "Message": "in conflict"}, *({"Code": "None"} for _ in elements[1:])]
    return _error(url, 400, "TransactionCanceledException", CancellationReasons=reasons)


def _unprocessed(url: str, request: AWSPreparedRequest) -> AWSResponse:
    wanted = _body(request)["RequestItems"]
    return _response(url, 200, {"Responses": {table: [] for table in wanted}, "UnprocessedKeys": wanted})


def _body(request: AWSPreparedRequest) -> Any:
    return json.loads(request.body if isinstance(request.body, str | bytes) else b"")


def _error(url: str, status: int, code: str, **more: Any) -> AWSResponse:
    return _response(url, status, {"__type": _TYPE + code, "message": "as planned", **more})


class _Raw(BytesIO):
    """What an answer reads its body from."""

    def stream(self, **_named: Any) -> Any:
        yield self.read()


def _response(url: str, status: int, body: Any) -> AWSResponse:
    headers = HTTPHeaders()
    headers["content-type"] = "application/x-amz-json-1.0"
    headers["x-amzn-requestid"] = "planned"
    return AWSResponse(url, status, headers, _Raw(json.dumps(body).encode()))
