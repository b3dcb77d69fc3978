"""A hold that nobody can end, as the scheduled function tells of it, on moto."""

import io
import json
from typing import Any, Final

import boto3
import pytest

from sluice.core.budget import Amounts
from sluice.core.holds import HeldIn, Hold
from sluice.repository.holds import put_hold
from sluice.repository.wire import item_to_wire
from sluice.services.hold_sweep import GRACE_MS, MINUTE_MS
from sluice.shell import clock_ms, logger
from tests.http import APP, NAMESPACE, TABLE, Context, deployed

OVERDUE_MS: Final = 6 * MINUTE_MS


class ScheduledContext(Context):
    def get_remaining_time_in_millis(self) -> int:
        return 60_000


def test_it_is_told_without_its_content(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    with deployed("rollup.handler", monkeypatch) as module:
        monkeypatch.setattr(logger.registered_handler, "stream", stream)
        expired_ms = clock_ms() - GRACE_MS - OVERDUE_MS
        ledgers = (HeldIn(APP, Amounts(5)),)
        hold = Hold(NAMESPACE, "lease-1", APP, "gpt-4", (APP,), ledgers, "20270115", expired_ms - MINUTE_MS, expired_ms)
        item = {**put_hold(hold)["Item"], "state": APP}
        boto3.client("dynamodb").put_item(TableName=TABLE, Item=item_to_wire(item))
        counts: dict[str, Any] = module.handler({}, ScheduledContext())
    assert (counts["holds_expired"], counts["holds_failed"]) == (0, 1)
    assert counts["sweep_lag_s"] >= OVERDUE_MS // 1000
    metrics = [json.loads(line) for line in capsys.readouterr().out.splitlines() if "_aws" in line]
    (line,) = (line for line in metrics if "SweepFailures" in line)
    assert (line["SweepFailures"], line["SweepLagSeconds"]) == ([1.0], [float(counts["sweep_lag_s"])])
    told = [json.loads(text) for text in stream.getvalue().splitlines()]
    assert [(line["message"], line.get("error")) for line in told] == [
        ("hold not ended", "UnknownShape"),
        ("run", None),
    ]
    assert not any(name in stream.getvalue() for name in (APP, NAMESPACE, "lease-1"))
