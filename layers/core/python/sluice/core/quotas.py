"""How much of a label's quota of a day is spent. Integers alone: a percentage is cut to tenths, never rounded up."""

from enum import StrEnum


class Mode(StrEnum):
    """What a client should do about it: nothing, look more often, or take another label."""

    NORMAL = "NORMAL"
    TIGHT = "TIGHT"
    EXCEEDED = "EXCEEDED"


def percent_tenths(spent_usd_micros: int, quota_usd_micros: int) -> int | None:
    """Tenths of a percent. None for a quota of zero, of which nothing is a share."""
    return spent_usd_micros * 1000 // quota_usd_micros if quota_usd_micros else None


def mode_of(spent_usd_micros: int, quota_usd_micros: int, threshold_pct: int) -> Mode:
    if spent_usd_micros >= quota_usd_micros:
        return Mode.EXCEEDED
    return Mode.TIGHT if spent_usd_micros * 100 >= threshold_pct * quota_usd_micros else Mode.NORMAL
