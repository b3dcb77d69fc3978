"""A request that is wrong in one way, and how it must be refused."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Bad:
    """A request, and the refusal that it must get. `blamed`: the field; None where it is none."""

    method: str
    target: str
    status: int
    kind: str
    blamed: str | None = None
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.method} {self.target} {self.blamed or self.kind}"
