"""What leaves the house of an alert, and what happens where it is not taken."""

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from sluice.core.alerts import FORECAST, HARD, Alert, Whose
from sluice.core.budget import Dimension, Slot, Span
from sluice.core.errors import Unavailable
from sluice.repository.alert_bus import EventsAndTopic, detail_of

ALERT = Alert(Whose("ns", "a#b", 7), "20270115", Slot(Span.DAY, Dimension.COST), "80", 10, 8)


class Aws:
    """Both clients. `error`: what the verb of that name meets."""

    def __init__(self) -> None:
        self.made = 0
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.errors: dict[str, Exception] = {}
        self.failed = 0

    def client(self) -> "Aws":
        self.made += 1
        return self

    def _called(self, name: str, arguments: dict[str, Any]) -> None:
        self.calls.append((name, arguments))
        if name in self.errors:
            raise self.errors[name]

    def put_events(self, **arguments: Any) -> dict[str, int]:
        self._called("put_events", arguments)
        return {"FailedEntryCount": self.failed}

    def publish(self, **arguments: Any) -> None:
        self._called("publish", arguments)


def _bus(aws: Aws) -> EventsAndTopic:
    return EventsAndTopic(aws.client, aws.client, "arn:topic")


def test_an_event_and_a_message_carry_the_same() -> None:
    aws = Aws()
    bus = _bus(aws)
    bus.tell(ALERT)
    bus.tell(ALERT)
    assert aws.made == 2
    (_, put), (_, published) = aws.calls[:2]
    (entry,) = put["Entries"]
    assert (entry["Source"], entry["DetailType"]) == ("sluice", "budget.soft_cap")
    assert (published["TopicArn"], published["Subject"]) == ("arn:topic", "budget.soft_cap")
    assert published["Message"] == entry["Detail"]
    assert json.loads(entry["Detail"]) == {
        "id": "ns/BUDGET#a%23b#ALERT#20270115#cost#80#10#7",
        "namespace": "ns",
        "entity": "a#b",
        "span": "day",
        "period": "20270115",
        "dimension": "cost",
        "unit": "usd_micros",
        "percent": 80,
        "limit": 10,
        "used": 8,
        "type": "budget.soft_cap",
    }


@pytest.mark.parametrize(("percent", "kind"), [(HARD, "budget.hard_cap"), (FORECAST, "budget.forecast")])
def test_other_kinds_have_no_percentage(percent: str, kind: str) -> None:
    detail = detail_of(Alert(Whose("ns", "a", 7), "202701", Slot(Span.MONTH, Dimension.TOKENS), percent, 10, 8))
    assert (detail["type"], detail["percent"], detail["unit"]) == (kind, None, "tokens")


@pytest.mark.parametrize("verb", ["put_events", "publish"])
@pytest.mark.parametrize(
    "error", [ClientError({"Error": {"Code": "Throttling", "Message": "ns"}}, "x"), ReadTimeoutError(endpoint_url="u")]
)
def test_what_is_not_taken_comes_again(verb: str, error: Exception) -> None:
    aws = Aws()
    aws.errors[verb] = error
    with pytest.raises(Unavailable) as raised:
        _bus(aws).tell(ALERT)
    assert str(raised.value) == type(error).__name__


def test_an_event_that_the_bus_refuses_comes_again() -> None:
    aws = Aws()
    aws.failed = 1
    with pytest.raises(Unavailable):
        _bus(aws).tell(ALERT)
    assert [name for name, _ in aws.calls] == ["put_events"]
