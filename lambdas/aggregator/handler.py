"""Batches of the table's stream: what buckets consumed is counted into snapshots, the totals of counters that grew are
marked for the next rollup, what budgets reached is marked and told, then busy shards are split.

The answer names the first record that was not counted, marked or followed. The records before it are done; from it on
everything comes again, which changes nothing of what was counted or marked.
"""

import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aws_lambda_powertools.utilities.typing import LambdaContext

from sluice.core.signals import Meter, Signal
from sluice.shell import (
    PowertoolsMeter,
    Services,
    build_services,
    logger,
    make_client,
    metrics,
    process_environment,
    timer_ms,
)

Answer = dict[str, list[dict[str, str]]]
Handler = Callable[[Mapping[str, Any], LambdaContext], Answer]


def build_handler(services: Services, meter: Meter) -> Handler:
    def handle(event: Mapping[str, Any], _context: LambdaContext) -> Answer:
        try:
            return _run(services, meter, event["Records"])
        finally:
            if metrics.metric_set:
                metrics.flush_metrics()

    decorated: Handler = logger.inject_lambda_context(handle, clear_state=True)
    return decorated


def _run(services: Services, meter: Meter, records: Sequence[Mapping[str, Any]]) -> Answer:
    started_ms = timer_ms()
    counted = services.counting.count(records)
    for failure in counted.uncounted:
        _tell("records not counted", failure.error)
    marked = services.money.marking.mark(records)
    for failure in marked.unmarked:
        _tell("totals not marked", failure.error)
    alerted = services.money.alerts.follow(records)
    for failure in alerted.unfollowed:
        _tell("budgets not followed", failure.error)
    for error in services.growth.grow(counted.observations):
        meter.count(Signal.INTERNAL_ERRORS)
        _tell("shard not split", error)
    failures = [*counted.uncounted, *marked.unmarked, *alerted.unfollowed]
    observed = len(counted.observations) + marked.observed + alerted.observed
    extra = {"records": len(records), "observed": observed, "failed": len(failures)}
    logger.info("batch", extra={**extra, "duration_ms": timer_ms() - started_ms})
    if not failures:
        return {"batchItemFailures": []}
    first = min(failure.position for failure in failures)
    sequence = records[first]["dynamodb"]["SequenceNumber"]
    return {"batchItemFailures": [{"itemIdentifier": sequence}]}


def _tell(message: str, error: Exception) -> None:
    """Where it happened, and not the error's own words: they may hold the ids of a tenant."""
    extra = {"error": type(error).__name__, "stack": traceback.format_tb(error.__traceback__)}
    logger.error(message, extra=extra)


def _handler() -> Handler:
    environment = process_environment()
    meter = PowertoolsMeter(environment)
    return build_handler(build_services(environment, make_client(environment), meter), meter)


handler = _handler()
