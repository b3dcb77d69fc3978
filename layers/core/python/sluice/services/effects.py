"""What a service may use of the world outside. Passed in, so that a simulation stays deterministic."""

from collections.abc import Callable
from dataclasses import dataclass

from sluice.core.backoff import RandomBelow
from sluice.core.signals import Meter


@dataclass(frozen=True, slots=True)
class Effects:
    """`new_token` names a transaction, or anything else that nobody may guess."""

    clock_ms: Callable[[], int]
    random_below: RandomBelow
    new_token: Callable[[], str]
    meter: Meter
