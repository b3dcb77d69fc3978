"""Waiting times are bounded and spread."""

from sluice.core.backoff import contended_wait_ms, pause_ms


def test_a_contended_caller_waits_25_to_75_ms() -> None:
    assert contended_wait_ms(lambda _below: 0) == 25
    assert contended_wait_ms(lambda below: below - 1) == 75


def test_pauses_double_up_to_a_bound() -> None:
    longest = [pause_ms(attempt, lambda below: below - 1) for attempt in range(8)]
    assert longest == [10, 20, 40, 80, 160, 200, 200, 200]
    assert all(pause_ms(attempt, lambda _below: 0) == 1 for attempt in range(8))
