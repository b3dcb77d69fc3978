"""What the answers of the workers come to. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Contention:
    """Many processes on one bucket."""

    planned: float
    """Attempts, had every process kept up with its demand."""
    attempts: int
    asked: int
    """Attempts that made a call."""
    admitted: int
    contended: int
    """Refused with the word that it was not for lack of tokens."""
    due: int
    """What one process, asking at the same moments, would have been admitted."""
    writes: int

    @property
    def refused_although_due(self) -> int:
        return max(0, self.due - self.admitted)

    @classmethod
    def of(
        cls, answer: dict[str, Any], *, planned: float, rate_per_s: int, level: int, burst: int | None = None
    ) -> "Contention":
        said = [said for _, said in answer["attempts"]]
        moments_s = [at_s for at_s, _ in answer["attempts"]]
        return cls(
            planned=planned,
            attempts=len(said),
            asked=answer["asked"],
            admitted=said.count("admitted"),
            contended=said.count("contended"),
            due=due(moments_s, rate_per_s, level, answer["drained_s"], burst),
            writes=answer["writes"],
        )

    def __add__(self, other: "Contention") -> "Contention":
        return Contention(
            self.planned + other.planned,
            self.attempts + other.attempts,
            self.asked + other.asked,
            self.admitted + other.admitted,
            self.contended + other.contended,
            self.due + other.due,
            self.writes + other.writes,
        )


@dataclass(frozen=True)
class Refill:
    """What a job wrote beside the clients. Of what it sent for buckets, a part lost to a client and changed nothing."""

    sent: int = 0
    applied: int = 0
    others: int = 0
    """For anything but buckets."""
    errors: int = 0

    @classmethod
    def of(cls, answer: dict[str, int] | None) -> "Refill":
        if answer is None:
            return cls()
        return cls(answer["refills"], answer["refills_applied"], answer["others"], answer["errors"])


@dataclass(frozen=True)
class Busy:
    """One bucket, asked for at its rate."""

    clients: Contention
    refill: Refill

    @property
    def writes_per_admitted(self) -> float:
        """Of the bucket, by whomever."""
        return (self.clients.writes + self.refill.sent) / max(1, self.clients.admitted)

    @property
    def refills_per_1000(self) -> float:
        return 1000 * self.refill.sent / max(1, self.clients.admitted)


@dataclass
class Measured:
    """What was measured of one product. Lists have an entry per round."""

    versions: dict[str, str] = field(default_factory=dict)
    costs: dict[str, dict[str, float]] = field(default_factory=dict)
    cpu_us: dict[str, list[float]] = field(default_factory=dict)
    acquires_per_s: dict[int, list[float]] = field(default_factory=dict)
    admitted: int = 0
    slow_milli: int = 0
    contention: dict[float, Contention] = field(default_factory=dict)
    """By the demand, as a multiple of the rate."""
    busy: dict[int, Busy] = field(default_factory=dict)
    """By the number of processes, with the job that the product has for it."""
    busy_alone: dict[int, Busy] = field(default_factory=dict)
    """The same without the job, of a product that has one."""


def due(moments_s: Sequence[float], rate_per_s: int, level: float, level_at_s: float, burst: int | None = None) -> int:
    """How many of these requests for one token an exact bucket admits. A burst that is not told is a second's."""
    most = float(rate_per_s if burst is None else burst)
    admitted = 0
    for moment_s in sorted(moments_s):
        if moment_s > level_at_s:
            level = min(most, level + (moment_s - level_at_s) * rate_per_s)
            level_at_s = moment_s
        if level >= 1:
            level -= 1
            admitted += 1
    return admitted


def median_ratio(values: Sequence[float], base: Sequence[float]) -> float:
    """Of rounds that took turns: what slows a machine down for a while slows both."""
    return median(value / other for value, other in zip(values, base, strict=True))
