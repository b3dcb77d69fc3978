"""What is worth telling, and the item that makes it once."""

from dataclasses import replace

import pytest

from sluice.core.alerts import FORECAST, HARD, Alert, Whose, foreseen, reached
from sluice.core.budget import Amounts, Dimension, Enforcement, Periods, Slot, Span, Standing, Terms, Used
from sluice.core.period import LocalDay, LocalMonth, day_number
from sluice.repository.alert_markers import alert_id, decode_marker, is_new, new_image, put_marker
from sluice.repository.shapes import UnknownShape

WHOSE = Whose("ns", "a", 7)
DAY_COST = Slot(Span.DAY, Dimension.COST)
MONTH_COST = Slot(Span.MONTH, Dimension.COST)
HOUR_MS = 3_600_000
DAY = LocalDay(day_number("20270115"), 0, 24 * HOUR_MS)
MONTH = LocalMonth("202701", -14 * 24 * HOUR_MS, 17 * 24 * HOUR_MS)
SOFT = Terms({DAY_COST: 100}, Enforcement.SOFT)


def standing(spent: int, held: int = 0) -> Standing:
    used = Used(Amounts(spent + held))
    return Standing(Periods.of_name("20270115"), used, used, Amounts(held))


@pytest.mark.parametrize(
    ("spent", "told"),
    [(79, []), (80, [("80", False)]), (100, [("80", True), ("100", False)]), (300, [("80", True), ("100", False)])],
)
def test_percentages(spent: int, told: list[tuple[str, bool]]) -> None:
    found = reached(WHOSE, SOFT, standing(spent, held=50))
    assert [(alert.percent, alert.silent) for alert in found] == told
    assert {alert.used for alert in found} <= {spent}


def test_who_only_counts_is_told_nothing() -> None:
    terms = replace(SOFT, enforcement=Enforcement.NONE)
    assert reached(WHOSE, terms, standing(100)) == []
    assert foreseen(WHOSE, terms, standing(60), DAY, 12 * HOUR_MS) == []


def test_a_limit_of_zero_has_no_percentages() -> None:
    assert reached(WHOSE, replace(SOFT, limits={DAY_COST: 0}), standing(5)) == []


@pytest.mark.parametrize(
    ("spent", "hours", "told"), [(26, 6, [104]), (26, 5, []), (25, 6, []), (100, 12, []), (99, 23, [103])]
)
def test_forecasts(spent: int, hours: int, told: list[int]) -> None:
    found = foreseen(WHOSE, SOFT, standing(spent), DAY, hours * HOUR_MS)
    assert [(alert.percent, alert.period, alert.used) for alert in found] == [
        (FORECAST, "20270115", one) for one in told
    ]


def test_a_forecast_is_of_its_own_period() -> None:
    both = replace(SOFT, limits={DAY_COST: 100, MONTH_COST: 100})
    found = foreseen(WHOSE, both, standing(60), MONTH, 12 * HOUR_MS)
    assert [(alert.slot, alert.period) for alert in found] == [(MONTH_COST, "202701")]


@pytest.mark.parametrize(
    ("percent", "kind"), [("80", "budget.soft_cap"), (HARD, "budget.hard_cap"), (FORECAST, "budget.forecast")]
)
def test_kinds(percent: str, kind: str) -> None:
    assert Alert(WHOSE, "20270115", DAY_COST, percent, 1, 1).detail_type == kind


def test_a_marker_is_read_as_it_was_written() -> None:
    alert = Alert(WHOSE, "202701", MONTH_COST, "80", 10, 8, silent=True, at_ms=7)
    item = put_marker(alert, 1_000, 7)["Item"]
    assert decode_marker(item) == alert
    assert item["ttl"] == 1 + 40 * 86_400
    with pytest.raises(UnknownShape):
        decode_marker({**item, "span": "week"})


def test_records_of_other_items_are_nothing() -> None:
    assert new_image({"dynamodb": {}}, "alert_marker") is None
    assert new_image({"dynamodb": {"NewImage": {"kind": {"S": "bucket"}}}}, "alert_marker") is None
    assert new_image({"dynamodb": {"NewImage": {"kind": {"S": "x"}}}}, "x") == {"kind": "x"}
    assert not is_new({"eventName": "MODIFY"})
    for broken in ({}, {"dynamodb": None}, {"dynamodb": {"NewImage": 5}}):
        with pytest.raises(UnknownShape):
            new_image(broken, "x")


def test_the_id_of_an_alert_is_the_key_of_its_marker() -> None:
    alert = Alert(Whose("n/s", "a#b", 7), "20270115", DAY_COST, "80", 10, 8)
    item = put_marker(alert, 1_000, 7)["Item"]
    assert alert_id(alert) == f"{item['PK']}{item['SK']}" == "n%2Fs/BUDGET#a%23b#ALERT#20270115#cost#80#10#7"
