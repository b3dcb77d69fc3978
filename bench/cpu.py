"""Client CPU of a warm acquire over that of the bare boto3 call it makes: `make cpu`.

Both send the same request to the same engine, in turns, and only the CPU of this process is counted. The ratio carries
over to other machines; the microseconds do not.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any, Final

from mypy_boto3_dynamodb import DynamoDBClient

from bench.costs import CONSUME, LIMITS, NAMESPACE, RESOURCE, Uncounted
from local.engine import Engine, dynamodb_client
from local.table import create_table
from sluice.core.limits import Limit, Scope
from sluice.services.chains import AcquireRequest
from sluice.shell import Environment, build_services

ROUNDS: Final = 40
CALLS_PER_ROUND: Final = 50
# Never drained, never full again while this runs: every call is the one-write path.
ENDLESS: Final = {name: Limit(10**9, 10**9, 1, limit.refill_period_seconds) for name, limit in LIMITS.items()}


def main() -> None:
    with Engine() as engine:
        client = dynamodb_client(engine.endpoint)
        create_table(client, "cpu")
        services = build_services(Environment("bench", "cpu", 10_000), client, Uncounted())
        services.limits.put(NAMESPACE, Scope(resource=RESOURCE), ENDLESS)
        request = AcquireRequest(NAMESPACE, "user-1", RESOURCE, CONSUME)
        services.acquire.acquire(request)
        bare = _request_of(client, lambda: services.acquire.acquire(request))
        ours_us: list[float] = []
        bare_us: list[float] = []
        for _ in range(ROUNDS):
            bare_us.append(_cpu_us(lambda: client.update_item(**bare)))
            ours_us.append(_cpu_us(lambda: services.acquire.acquire(request)))
    ratios = [ours / base for ours, base in zip(ours_us, bare_us, strict=True)]
    print(f"bare update_item   {statistics.median(bare_us):7.0f} us CPU")
    print(f"warm acquire       {statistics.median(ours_us):7.0f} us CPU")
    print(f"ratio              {statistics.median(ratios):7.3f}   (median of {ROUNDS} interleaved rounds)")


def _request_of(client: DynamoDBClient, call: Callable[[], object]) -> dict[str, Any]:
    """What the call sends, as arguments of update_item."""
    sent: list[dict[str, Any]] = []

    def keep(params: dict[str, Any], **_more: Any) -> None:
        sent.append(params)

    operation = "provide-client-params.dynamodb.UpdateItem"
    client.meta.events.register(operation, keep)
    call()
    client.meta.events.unregister(operation, keep)
    (request,) = sent
    return request


def _cpu_us(call: Callable[[], object]) -> float:
    start = time.process_time_ns()
    for _ in range(CALLS_PER_ROUND):
        call()
    return (time.process_time_ns() - start) / 1000 / CALLS_PER_ROUND


if __name__ == "__main__":
    main()
