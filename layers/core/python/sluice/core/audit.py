"""Who changed something."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Author:
    """`actor`: a client id, `operator` or `system`. `request_id`: finds the request in the log."""

    actor: str
    request_id: str


BY_SYSTEM: Final = Author("system", "-")
