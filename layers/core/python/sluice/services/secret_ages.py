"""Keys that nobody has rotated for a long time are counted, so that an alarm can tell somebody."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from sluice.core.signals import Signal
from sluice.services.effects import Effects

AGE_MAX_MS: Final = 90 * 24 * 3600 * 1000
LOOK_MS: Final = 3600 * 1000


class Dates(Protocol):
    def changed_at_ms(self, secret: str) -> int | None:
        """None while nobody answers that."""
        ...


class SecretAges:
    """Looks at most once an hour per process and counts in every run: an alarm must not pause between two looks.

    The timer must be monotonic. A secret whose age was never learned counts as too old: else a missing permission would
    keep the alarm silent for ever.
    """

    def __init__(self, secrets: Sequence[str], dates: Dates, effects: Effects, timer_ms: Callable[[], int]) -> None:
        self._secrets = secrets
        self._dates = dates
        self._effects = effects
        self._timer_ms = timer_ms
        self._changed_at_ms: dict[str, int] = {}
        self._looked_ms: int | None = None

    def count_old(self) -> int:
        """How many are too old."""
        self._look()
        oldest_ms = self._effects.clock_ms() - AGE_MAX_MS
        old = sum(self._changed_at_ms.get(secret, 0) < oldest_ms for secret in self._secrets)
        if old:
            self._effects.meter.count(Signal.SECRETS_TOO_OLD, old)
        return old

    def _look(self) -> None:
        now_ms = self._timer_ms()
        if self._looked_ms is not None and now_ms - self._looked_ms < LOOK_MS:
            return
        self._looked_ms = now_ms
        for secret in self._secrets:
            changed_at_ms = self._dates.changed_at_ms(secret)
            if changed_at_ms is not None:
                self._changed_at_ms[secret] = changed_at_ms
