"""The largest answer of what was used: it must get through, or nobody could ask for a narrower one."""

import json

import pytest
from aws_lambda_powertools.event_handler import APIGatewayHttpResolver
from aws_lambda_powertools.utilities.typing import LambdaContext

from control_plane.aggregate_models import AggregateAnswer
from sluice.core.metering import Counters
from sluice.core.orgs import QUOTA_MAX_USD_MICROS, QUOTAS_MAX
from sluice.core.pricing import TokenKind
from sluice.core.quotas import Mode
from sluice.repository.sticky import Override, StickyState
from sluice.repository.totals import KEPT_DAYS
from sluice.services.aggregates import ROWS_BYTES_MAX, Aggregate, DayUsed, LabelUsed, rows_bytes

LAMBDA_ANSWER_MAX = 6 * 1024 * 1024
MANY = 10**20 - 1
COUNTERS = Counters(MANY, dict.fromkeys(TokenKind, MANY), MANY, MANY, MANY)
LAST_DAY = 739_000


def day(number: int, *labels: str) -> DayUsed:
    rows = (LabelUsed(label, COUNTERS, QUOTA_MAX_USD_MICROS, MANY, Mode.EXCEEDED) for label in labels)
    return DayUsed(number, tuple(rows), COUNTERS, None)


def answered(label: str) -> tuple[int, str]:
    """How many rows of a label an answer can have, and the largest such answer as a function gives it."""
    count = ROWS_BYTES_MAX // rows_bytes([label])
    # An org and an app have so many quotas, and today lists all of them.
    quotas = ["q" * 128] * (2 * QUOTAS_MAX)
    override = Override("q" * 128, "\N{PILE OF POO}" * 500, "c" * 128, 0)
    sticky = StickyState("q" * 128, "q" * 128, 0, override)
    today = DayUsed(LAST_DAY, (*day(0, *quotas).labels, *day(0, *[label] * count).labels), COUNTERS, sticky)
    days = [day(number) for number in range(LAST_DAY - KEPT_DAYS + 1, LAST_DAY)]
    months = {f"{2000 + number // 12}{number % 12 + 1:02}": COUNTERS for number in range(15)}
    found = Aggregate("e" * 128, "America/Argentina/ComodRivadavia", (*days, today), months, COUNTERS, 0)

    resolver = APIGatewayHttpResolver(enable_validation=True)

    @resolver.get("/")
    def answer() -> AggregateAnswer:
        return AggregateAnswer.of(found)

    event = {
        "version": "2.0",
        "rawPath": "/",
        "headers": {},
        "requestContext": {"http": {"method": "GET", "path": "/"}, "stage": "$default"},
    }
    return count, json.dumps(resolver.resolve(event, LambdaContext()))


@pytest.mark.parametrize("label", ["\\" * 256, "premium", "p"])
def test_the_largest_answer_is_none_too_large(label: str) -> None:
    count, text = answered(label)
    assert json.loads(json.loads(text)["body"])["days"][-1]["labels"][-1]["label"] == label
    assert len(text) < LAMBDA_ANSWER_MAX
    # And it is not much smaller than it could be.
    assert len(text) > ROWS_BYTES_MAX * 0.9
    assert count > 3_500
