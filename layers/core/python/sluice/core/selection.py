"""Which label an application should use now, and when it should ask again. Integers alone.

Labels are tried in their order, from the one where selection stands today: the first with something left of its quota
is chosen. Moving on is kept until the end of the local day, so that nobody goes to and fro between two models. A label
is never left while something of its own quota is there.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sluice.core.orgs import INTERVAL_MIN_SECS
from sluice.core.quotas import Mode, mode_of


class Reason(StrEnum):
    """Why a label was chosen."""

    NORMAL = "normal"
    QUOTA_EXCEEDED = "quota_exceeded"
    """The one before it is spent, as it turned out just now."""
    STICKY = "sticky"
    """Selection moved here earlier today."""
    OVERRIDE = "override"
    """Somebody said so."""


@dataclass(frozen=True, slots=True)
class Spend:
    """What was spent of a label's quota today."""

    label: str
    spent_usd_micros: int
    quota_usd_micros: int

    @property
    def is_spent(self) -> bool:
        return self.spent_usd_micros >= self.quota_usd_micros

    def mode(self, threshold_pct: int) -> Mode:
        return mode_of(self.spent_usd_micros, self.quota_usd_micros, threshold_pct)


@dataclass(frozen=True, slots=True)
class Stand:
    """Where selection stands today. `label`: None before it moved. `override`: the label that somebody set, if any."""

    label: str | None = None
    previous_label: str | None = None
    override: str | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """`previous_label`: from where selection moved to it. `moves`: whether that is to be kept, and is not yet."""

    label: str
    reason: Reason
    previous_label: str | None
    moves: bool


def usable_labels(
    ordering: Sequence[str], quotas_usd_micros: Mapping[str, int], defined: Container[str]
) -> tuple[str, ...]:
    """An ordering may name labels before they are defined, and an org may take a quota from under an app's ordering.
    Both are passed over."""
    return tuple(label for label in ordering if label in quotas_usd_micros and label in defined)


def choose(usable: Sequence[Spend], stand: Stand, *, sticky_enabled: bool) -> Choice | None:
    """`usable`: in their order. None where no label that comes into question has anything left.

    What selection stands on is not looked at where it is no longer among them, or where it is not to be kept.
    """
    places = {one.label: place for place, one in enumerate(usable)}
    if stand.override in places:
        return Choice(stand.override, Reason.OVERRIDE, None, moves=False)
    start = places.get(stand.label, 0) if sticky_enabled and stand.label is not None else 0
    chosen = next((one.label for one in usable[start:] if not one.is_spent), None)
    if chosen is None:
        return None
    if chosen != usable[start].label:
        return Choice(chosen, Reason.QUOTA_EXCEEDED, usable[start].label, moves=sticky_enabled)
    if start == 0:
        return Choice(chosen, Reason.NORMAL, None, moves=False)
    return Choice(chosen, Reason.STICKY, stand.previous_label, moves=False)


def check_again_in_s(spend: Spend, mode: Mode, normal_s: int, tight_s: int, elapsed_ms: int) -> int:
    """When to ask again: sooner where the quota would be reached before, if the day goes on as it went so far.

    `elapsed_ms`: of the local day.
    """
    interval_s = normal_s if mode is Mode.NORMAL else tight_s
    left_usd_micros = spend.quota_usd_micros - spend.spent_usd_micros
    if spend.spent_usd_micros > 0 and left_usd_micros > 0:
        interval_s = min(interval_s, left_usd_micros * elapsed_ms // (spend.spent_usd_micros * 1000))
    return max(interval_s, INTERVAL_MIN_SECS)
