"""Which models an inference profile has: asked of AWS on first use, and remembered.

An ARN's models hardly ever change, so an answer holds for an hour, and longer while AWS does not answer. A refusal
holds for a minute, and silence of a region for a few seconds: neither may cost every usage event a call.
"""

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Final, Protocol

from cachetools import LRUCache

from sluice.core.arns import ModelInRegion, ProfileArn, ProfileRefused
from sluice.core.errors import ModelsUnavailable, Unavailable

ANSWER_MS: Final = 3_600_000
REFUSAL_MS: Final = 60_000
SILENCE_MS: Final = 5_000
ARNS_MAX: Final = 10_000
_REGIONS_MAX: Final = 1_000

Models = tuple[ModelInRegion, ...]


class ProfileSource(Protocol):
    def models(self, arn: ProfileArn) -> Models:
        """As AWS says now. Raises ProfileRefused, or Unavailable where asking again may help."""
        ...


@dataclass(frozen=True, slots=True)
class _Told:
    """`refusal`: why there are no models; None where there are."""

    models: Models
    refusal: str | None
    asked_ms: int


class ProfileModels:
    """Safe to share between threads. Two that ask at once may both ask AWS."""

    def __init__(self, source: ProfileSource, timer_ms: Callable[[], int]) -> None:
        self._source = source
        self.timer_ms = timer_ms
        self._told: LRUCache[ProfileArn, _Told] = LRUCache(ARNS_MAX)
        # When a region last failed to answer, whichever ARN it was asked for.
        self._silent_ms: LRUCache[str, int] = LRUCache(_REGIONS_MAX)
        self._lock = Lock()

    def of(self, arn: ProfileArn) -> Models:
        """Raises ProfileRefused or ModelsUnavailable."""
        now_ms = self.timer_ms()
        with self._lock:
            told = self._told.get(arn)
            is_silent = self._is_silent(arn, now_ms)
        if told is None or not _holds(told, now_ms):
            told = (None if is_silent else self._ask(arn, now_ms)) or _outlasting(told)
        if told is None:
            raise ModelsUnavailable
        if told.refusal is not None:
            raise ProfileRefused(told.refusal)
        return told.models

    def is_at_hand(self, arn: ProfileArn) -> bool:
        """Whether `of` would ask nobody."""
        now_ms = self.timer_ms()
        with self._lock:
            told = self._told.get(arn)
            return (told is not None and _holds(told, now_ms)) or self._is_silent(arn, now_ms)

    def _is_silent(self, arn: ProfileArn, now_ms: int) -> bool:
        """Under the lock."""
        silent_ms = self._silent_ms.get(arn.region)
        return silent_ms is not None and now_ms - silent_ms < SILENCE_MS

    def _ask(self, arn: ProfileArn, now_ms: int) -> _Told | None:
        """None where AWS does not answer."""
        try:
            told = _Told(self._source.models(arn), None, now_ms)
        except ProfileRefused as refused:
            told = _Told((), str(refused), now_ms)
        except Unavailable:
            with self._lock:
                # From the end of the call, which may have been a long wait.
                self._silent_ms[arn.region] = self.timer_ms()
            return None
        with self._lock:
            self._told[arn] = told
        return told


def _holds(told: _Told, now_ms: int) -> bool:
    return now_ms - told.asked_ms < (ANSWER_MS if told.refusal is None else REFUSAL_MS)


def _outlasting(told: _Told | None) -> _Told | None:
    """What is still gone by while AWS is silent: models, but no refusal, which may long be wrong."""
    return None if told is None or told.refusal is not None else told
