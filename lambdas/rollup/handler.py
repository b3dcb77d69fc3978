"""Every minute: the open jobs, each from its cursor, for most of the minute; once a day what is due then; and a look
at the age of the keys."""

import traceback
from collections.abc import Callable, Mapping
from typing import Any, Final

from aws_lambda_powertools.utilities.typing import LambdaContext

from sluice.services.jobs import Failure
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

WORK_MS: Final = 40_000
# A step that has begun must be able to end: it sends up to three hundred requests.
RESERVE_MS: Final = 15_000

Handler = Callable[[Mapping[str, Any], LambdaContext], dict[str, int]]


def build_handler(services: Services) -> Handler:
    def handle(_event: Mapping[str, Any], context: LambdaContext) -> dict[str, int]:
        try:
            return _run(services, context)
        finally:
            if metrics.metric_set:
                metrics.flush_metrics()

    decorated: Handler = logger.inject_lambda_context(handle, clear_state=True)
    return decorated


def _run(services: Services, context: LambdaContext) -> dict[str, int]:
    started_ms = timer_ms()

    def out_of_time() -> bool:
        return timer_ms() - started_ms >= WORK_MS or context.get_remaining_time_in_millis() <= RESERVE_MS

    run = services.jobs.run_open(services.work, out_of_time)
    for failure in run.failures:
        _tell(failure)
    counts = {
        "steps": run.steps,
        "finished": run.finished,
        "failed": len(run.failures),
        "left": run.left,
        "started": int(services.daily.start_due()),
        "old_secrets": services.secret_ages.count_old(),
    }
    logger.info("run", extra={**counts, "duration_ms": timer_ms() - started_ms})
    return counts


def _tell(failure: Failure) -> None:
    """Where it happened, and not the error's own words: they may hold the ids of a tenant."""
    extra = {
        "job_kind": failure.kind,
        "error": type(failure.error).__name__,
        "stack": traceback.format_tb(failure.error.__traceback__),
    }
    logger.error("job failed", extra=extra)


def _services() -> Services:
    environment = process_environment()
    return build_services(environment, make_client(environment), PowertoolsMeter(environment))


handler = build_handler(_services())
