"""Where an entity stands, in the units that people see."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LimitLevel:
    """One limit of a bucket. Tokens are whole, rounded down, and negative while in debt."""

    limit: str
    capacity: int
    window_seconds: int
    remaining: int
    full_in_ms: int


@dataclass(frozen=True, slots=True)
class Level:
    """All limits of one entity for the resource at hand."""

    entity: str
    limits: tuple[LimitLevel, ...]
