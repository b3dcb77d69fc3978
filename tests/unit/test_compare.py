"""The pure parts of `make compare`: what is billed, what was due, and the section that is written."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.compare.figures import Busy, Contention, Measured, Refill, due, median_ratio
from bench.compare.meter import BillingMeter, missing_units, transaction_units
from bench.compare.table import BEGIN, END, Setting, rewrite, rewritten, section

SETTING = Setting(
    engine="an engine",
    python="3.11.7",
    cores=2,
    clients=16,
    rate_per_s=40,
    busy_burst=400,
    busy_left=60,
    busy_demand=0.95,
    split_capacity=1000,
    slow_refill_s=3600,
)
QUIET = Contention(planned=100, attempts=100, asked=100, admitted=80, contended=0, due=80, writes=90)


def measured(**changes: Any) -> Measured:
    figures: dict[str, Any] = {
        "versions": {"boto3": "1.2.3", "zae-limiter": "0.17.0"},
        "costs": {"warm acquire": {"calls": 1, "writes": 1, "write_units": 1.0, "read_units": 0}},
        "cpu_us": {"warm acquire": [100.0, 300.0, 200.0]},
        "acquires_per_s": {1: [10.0], 16: [20.0]},
        "admitted": 1000,
        "slow_milli": 1000,
        "contention": {0.7: QUIET, 1.5: QUIET},
    }
    return Measured(**{**figures, **changes})


def row(text: str, begins: str) -> list[str]:
    (found,) = (line for line in text.splitlines() if line.startswith(f"| {begins}"))
    return [cell.strip() for cell in found.strip("|").split("|")]


@pytest.mark.parametrize(
    ("moments_s", "level", "admitted"),
    [
        ([], 0, 0),
        ([0.0, 0.0, 0.0], 2, 2),
        ([0.0, 0.0], 0.5, 0),
        ([0.05, 0.1], 0, 1),  # ten a second: a token every 100 ms
        ([0.1, 0.05], 0, 1),  # in whichever order they are told
        ([100.0] * 12, 0, 10),  # the burst is one second of the rate
        ([-1.0, 0.0], 1, 1),  # before the level was known there was no refill
    ],
)
def test_what_an_exact_bucket_admits(moments_s: list[float], level: float, admitted: int) -> None:
    assert due(moments_s, 10, level, 0.0) == admitted


def test_an_exact_bucket_admits_no_more_than_its_burst() -> None:
    assert due([100.0] * 12, 10, 0, 0.0, burst=11) == 11
    assert due([100.0] * 12, 10, 0, 0.0, burst=3) == 3


def test_a_refill_that_was_sent_is_a_write_whether_it_was_applied_or_not() -> None:
    refill = Refill.of({"refills": 4, "refills_applied": 1, "others": 160, "errors": 0})
    busy = Busy(replace(QUIET, admitted=80, writes=84), refill)
    assert busy.writes_per_admitted == 1.1
    assert busy.refills_per_1000 == 50
    assert Busy(replace(QUIET, writes=80), Refill.of(None)).writes_per_admitted == 1.0


def test_contention_counts_what_each_attempt_was_told() -> None:
    answer = {
        "attempts": [[10.0, "admitted"], [10.0, "contended"], [10.0, "refused"]],
        "asked": 2,
        "writes": 5,
        "drained_s": 10.0,
    }
    found = Contention.of(answer, planned=4.0, rate_per_s=10, level=2)
    assert found == Contention(planned=4.0, attempts=3, asked=2, admitted=1, contended=1, due=2, writes=5)
    assert found + found == Contention(planned=8.0, attempts=6, asked=4, admitted=2, contended=2, due=4, writes=10)


def test_a_ratio_is_that_of_rounds_next_to_each_other() -> None:
    # The medians alone would say 20 to 10.
    assert median_ratio([20.0, 3.0, 200.0], [10.0, 2.0, 200.0]) == 1.5


def test_a_transaction_is_billed_two_units_an_item_and_one_an_index_entry() -> None:
    put = {"Put": {"Item": {"PK": {"S": "a"}, "GSI2PK": {"S": "b"}, "GSI2SK": {"S": "c"}, "GSI4PK": {"S": "d"}}}}
    check = {"ConditionCheck": {"Key": {"PK": {"S": "a"}}}}
    assert transaction_units([put, check]) == 6
    assert transaction_units([{"Put": {"Item": {"PK": {"S": "a"}, "text": {"S": "x" * 1024}}}}]) == 4


def test_a_key_that_is_not_there_is_billed() -> None:
    requested = {"t": {"Keys": [{}, {}, {}]}, "u": {"Keys": [{}], "ConsistentRead": True}}
    assert missing_units(requested, {"Responses": {"t": [{}]}}) == 2.0
    assert missing_units({"t": {"Keys": [{}]}}, {"Responses": {"t": [{}]}}) == 0


def test_the_meter_counts_each_kind_of_call() -> None:
    class Events:
        def register(self, event: str, handler: Any) -> None:
            handlers[event] = handler

    class Client:
        meta: Any = type("Meta", (), {"events": Events()})

    class Model:
        def __init__(self, name: str) -> None:
            self.name = name

    handlers: dict[str, Any] = {}
    meter = BillingMeter(Client())

    def call(name: str, params: dict[str, Any], parsed: dict[str, Any]) -> None:
        context: dict[str, Any] = {}
        handlers["provide-client-params.dynamodb"](params=params, model=Model(name), context=context)
        assert params["ReturnConsumedCapacity"] == "INDEXES"
        handlers["after-call.dynamodb"](model=Model(name), parsed=parsed, context=context)

    call("UpdateItem", {}, {"ConsumedCapacity": {"CapacityUnits": 2.0}})
    call("UpdateItem", {}, {"Error": {"Code": "ConditionalCheckFailedException"}, "Item": {}})
    call("GetItem", {}, {"ConsumedCapacity": {"CapacityUnits": 0.5}})
    call("BatchGetItem", {"RequestItems": {"t": {"Keys": [{}]}}}, {"ConsumedCapacity": [{"CapacityUnits": 0.0}]})
    call("TransactWriteItems", {"TransactItems": [{"Update": {}}, {"ConditionCheck": {}}]}, {})
    bill = meter.taken()
    assert (bill.calls, bill.writes, bill.write_units, bill.read_units) == (5, 3, 7.0, 1.0)
    assert meter.taken().calls == 0


def test_only_what_is_between_the_markers_is_rewritten() -> None:
    document = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert rewritten(document, "new") == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    assert rewritten(rewritten(document, "other"), "new") == rewritten(document, "new")


@pytest.mark.parametrize("document", ["", BEGIN, END, f"{END}\n{BEGIN}"])
def test_without_both_markers_in_order_nothing_is_written(document: str, tmp_path: Path) -> None:
    path = tmp_path / "doc.md"
    path.write_text(document)
    with pytest.raises(ValueError, match="has no <!-- compare:begin -->"):
        rewrite(path, "new")
    assert path.read_text() == document


def test_the_section_has_a_column_for_each_product() -> None:
    theirs = measured(
        costs={"warm acquire": {"calls": 1, "writes": 1, "write_units": 2.0, "read_units": 0.5}},
        cpu_us={"warm acquire": [150.0, 450.0, 200.0]},
        acquires_per_s={1: [5.0], 16: [10.0]},
        admitted=1750,
        slow_milli=7,
    )
    text = section(SETTING, measured(admitted=999), theirs)
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in table} == {4}
    assert row(text, " | Sluice") == ["", "Sluice", "zae-limiter 0.17.0"]
    assert row(text, "warm acquire")[1:] == ["1 / 1 / 0", "1 / 2 / 0.5"]
    assert row(text, "client CPU of a warm acquire")[1:] == ["200", "200 (1.50 times)"]
    assert row(text, "acquires a second, 1 client ")[1:] == ["10", "5 (0.50 times)"]
    assert row(text, "acquires a second, 16 clients")[1:] == ["20", "10 (0.50 times)"]
    assert row(text, "admitted beyond 1000")[1:] == ["0", "750"]
    assert row(text, "gained by 1 an hour")[1:] == ["1000", "7"]
    assert "exact: 1000" in row(text, "gained by 1 an hour")[0]
    assert max(len(line) for line in text.splitlines() if not line.startswith("|")) <= 120


def test_the_section_tells_every_demand_in_its_cell() -> None:
    busy = replace(QUIET, admitted=40, contended=3, writes=180)
    # More than was due: the order in which they were told is not the order in which they asked.
    lucky = replace(QUIET, due=79)
    text = section(SETTING, measured(contention={0.7: QUIET, 1.5: lucky}), measured(contention={0.7: QUIET, 1.5: busy}))
    where = "16 processes on one bucket at 0.7 / 1.5 times its rate"
    assert row(text, f"{where}: writes per admitted")[1:] == ["1.12 / 1.12", "1.12 / 4.50"]
    assert row(text, f"{where}: writes per request")[1:] == ["0.90 / 0.90", "0.90 / 1.80"]
    assert row(text, f"{where}: answered")[1:] == ["0 / 0", "0 / 3"]
    assert row(text, f"{where}: refused although due")[1:] == ["0 % / 0 %", "0 % / 50 %"]
    assert "fell behind" not in text


def test_the_section_tells_what_a_refill_job_costs_beside_none() -> None:
    even = Busy(replace(QUIET, writes=80), Refill())
    topped_up = Busy(replace(QUIET, writes=84), Refill(sent=4, applied=3, others=160))
    alone = Busy(replace(QUIET, writes=100), Refill())
    text = section(
        SETTING,
        measured(busy={1: even, 16: even}),
        measured(busy={1: even, 16: topped_up}, busy_alone={1: even, 16: alone}),
    )
    where = "busy bucket, no refill job (zae-limiter: its aggregator's), from 1 / 16 processes"
    assert row(text, f"{where}: writes")[1:] == ["1.000 / 1.000", "1.000 / 1.100"]
    assert row(text, f"{where}: of these by a refill job")[1:] == ["0 / 0", "0 / 50"]
    note = " ".join(text[text.rindex("[5]") :].split())
    assert "It sent 0 and 4 refills for 80 and 80 admitted requests, of which 0 and 3 were applied. " in note
    assert "The 0 and 160 writes of its usage records" in note
    assert note.endswith("1.000 and 1.250 writes per admitted request.")


def test_errors_of_a_refill_job_are_told_of() -> None:
    failed = Busy(QUIET, Refill(errors=2))
    text = " ".join(section(SETTING, measured(), measured(busy={1: failed, 16: failed})).split())
    assert "were applied; it told of 4 errors." in text


def test_processes_that_fell_behind_are_told_of() -> None:
    late = replace(QUIET, attempts=60)
    text = " ".join(section(SETTING, measured(), measured(contention={0.7: QUIET, 1.5: late})).split())
    assert "asked only for 60 % of the demand at 1.5 (zae-limiter)." in text
