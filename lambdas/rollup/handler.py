"""Every minute: the totals that are due, and what is held for calls that were never reported; then the open jobs, each
from its cursor, for most of what is left of the minute; once a day what is due then; and a look at the age of the keys.
"""

import traceback
from collections.abc import Callable, Mapping
from typing import Any, Final

from aws_lambda_powertools.utilities.typing import LambdaContext

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
# Of it, for the totals: jobs go on as well while there are more totals than one run can do.
ROLLUP_MS: Final = 25_000
# Until then, for the holds that expired.
SWEEP_MS: Final = 32_000
# A step that has begun must be able to end: it sends up to three hundred requests.
RESERVE_MS: Final = 15_000
# While the table does not answer, each total fails in the same way.
TOLD_MAX: Final = 20

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

    def out_of_time(work_ms: int = WORK_MS) -> bool:
        return timer_ms() - started_ms >= work_ms or context.get_remaining_time_in_millis() <= RESERVE_MS

    rollup = services.money.rollup.run(lambda: out_of_time(ROLLUP_MS))
    for error in rollup.failures[:TOLD_MAX]:
        _tell("total not rolled up", error)
    sweep = services.money.hold_sweep.run(lambda: out_of_time(SWEEP_MS))
    for error in sweep.failures[:TOLD_MAX]:
        _tell("hold not ended", error)
    run = services.jobs.run_open(services.work, out_of_time)
    for failure in run.failures:
        _tell("job failed", failure.error, job_kind=failure.kind)
    counts = {
        "totals": rollup.done,
        "totals_left": rollup.left,
        "totals_failed": len(rollup.failures),
        "marks_dropped": rollup.dropped,
        "lag_s": rollup.lag_s,
        "holds_expired": sweep.expired,
        "holds_failed": len(sweep.failures),
        "sweep_lag_s": sweep.lag_s,
        "steps": run.steps,
        "finished": run.finished,
        "failed": len(run.failures),
        "left": run.left,
        "started": services.daily.start_due(),
        "old_secrets": services.secret_ages.count_old(),
    }
    logger.info("run", extra={**counts, "duration_ms": timer_ms() - started_ms})
    return counts


def _tell(message: str, error: Exception, **more: str) -> None:
    """Where it happened, and not the error's own words: they may hold the ids of a tenant."""
    extra = {**more, "error": type(error).__name__, "stack": traceback.format_tb(error.__traceback__)}
    logger.error(message, extra=extra)


def _services() -> Services:
    environment = process_environment()
    return build_services(environment, make_client(environment), PowertoolsMeter(environment))


handler = build_handler(_services())
