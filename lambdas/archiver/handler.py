"""Batches of the table's stream: what is archived of each, and where the next delivery has to begin."""

import traceback
from collections.abc import Callable, Mapping
from typing import Any

from aws_lambda_powertools.utilities.typing import LambdaContext

from sluice.services.archiving import Archived, Archiving
from sluice.shell import (
    PowertoolsMeter,
    build_services,
    clock_ms,
    logger,
    make_client,
    metrics,
    process_environment,
)

Answer = dict[str, list[dict[str, str]]]
Handler = Callable[[Mapping[str, Any], LambdaContext], Answer]


def build_handler(archiving: Archiving) -> Handler:
    def handle(event: Mapping[str, Any], _context: LambdaContext) -> Answer:
        try:
            return _run(archiving, event)
        finally:
            if metrics.metric_set:
                metrics.flush_metrics()

    decorated: Handler = logger.inject_lambda_context(handle, clear_state=True)
    return decorated


def _run(archiving: Archiving, event: Mapping[str, Any]) -> Answer:
    """One failure at most: everything from that record on is delivered again."""
    records = event["Records"]
    done = archiving.archive(records[0]["eventSourceARN"], records) if records else Archived()
    if done.error is not None:
        _tell(done.error)
    logger.info(
        "archived",
        extra={
            "records": len(records),
            "lines": done.lines,
            "objects": done.objects,
            "bytes": done.size_bytes,
            "left_out": done.left_out,
            "lag_ms": 0 if done.newest_ms is None else clock_ms() - done.newest_ms,
        },
    )
    return {"batchItemFailures": [] if done.failed is None else [{"itemIdentifier": done.failed}]}


def _tell(error: Exception) -> None:
    """Where it happened, and not the error's own words: they may hold the ids of a tenant."""
    extra = {"error": type(error).__name__, "stack": traceback.format_tb(error.__traceback__)}
    logger.error("not archived", extra=extra)


def _archiving() -> Archiving:
    environment = process_environment()
    archiving = build_services(environment, make_client(environment), PowertoolsMeter(environment)).archiving
    if archiving is None:
        raise LookupError("SLUICE_ARCHIVE_BUCKET is not set: there is nowhere to archive to")
    return archiving


handler = build_handler(_archiving())
