"""How many seeds there were, how fast, and what went wrong in them: added up over all tests and workers."""

from typing import Any, Final

import pytest

SIMULATED: Final = "simulated"
"""The property of a test that ran seeds: their number, the calls and faults in them, the requests, the CPU time."""

DELIVERED: Final = "delivered"
"""The property of a test that delivered a stream: how many histories, and how many records of them."""

EXPLORED: Final = "explored"
"""The property of a test that ran every order of a small scope: how many orders, and how many of them were run."""

_met: list[tuple[int, int, int, int, float]] = []
_delivered: list[tuple[int, int]] = []
_explored: list[tuple[int, int]] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call":
        properties: list[tuple[str, Any]] = report.user_properties
        _met.extend(counts for name, counts in properties if name == SIMULATED)
        _delivered.extend(counts for name, counts in properties if name == DELIVERED)
        _explored.extend(counts for name, counts in properties if name == EXPLORED)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _delivered:
        histories, records = (sum(column) for column in zip(*_delivered, strict=True))
        terminalreporter.write_line(f"{records:,} records delivered of {histories:,} histories")
    if _explored:
        orders, runs = (sum(column) for column in zip(*_explored, strict=True))
        terminalreporter.write_line(f"{orders:,} orders of {len(_explored)} small scopes, {runs:,} of them run")
    if not _met:
        return
    seeds, calls, faults, requests, cpu_s = (sum(column) for column in zip(*_met, strict=True))
    terminalreporter.write_line(
        f"{seeds:,} seeds, {requests:,} requests, {calls:,} calls, {faults:,} faults; "
        f"{cpu_s:,.0f} s of CPU, {seeds / cpu_s:,.0f} seeds a second of it"
    )
