"""Times as people write them: RFC 3339. What is finer than a millisecond is cut off."""

from datetime import UTC, datetime, timedelta
from typing import Final

from sluice.core.errors import InvalidRequest
from sluice.edge.problems import rfc3339

_DAY: Final = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_HOUR: Final = r"([01][0-9]|2[0-3])"
DAY_PATTERN: Final = f"^{_DAY}$"
# Any number of digits, as far as the length goes: Go prints nine behind the point, and Java too.
TIME_PATTERN: Final = rf"^{_DAY}[Tt]{_HOUR}:[0-5][0-9]:[0-5][0-9](\.[0-9]+)?([Zz]|[+-]{_HOUR}:[0-5][0-9])$"
TIME_LENGTH_MAX: Final = 40

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)


def time_ms(field: str, text: str) -> int:
    """Of a text of that pattern. Raises InvalidRequest."""
    try:
        # Which knows no small z. Of the fraction it cuts off what is behind the sixth digit.
        found = (datetime.fromisoformat(text.upper()).astimezone(UTC) - _EPOCH) // _MS
    except (ValueError, OverflowError):
        raise InvalidRequest(field, "is not a time") from None
    if found < 0:
        raise InvalidRequest(field, "must not be before 1970")
    return found


def optional_time(time_ms: int | None) -> str | None:
    """As it is shown. None: it never happened."""
    return None if time_ms is None else rfc3339(time_ms)
