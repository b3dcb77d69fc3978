"""Rate-limit headers: structured fields of the IETF draft "RateLimit header fields for HTTP"."""

from collections.abc import Sequence
from typing import Final

from sluice.core.bucket import ceil_div
from sluice.core.levels import Level

# What a structured field can hold as an integer.
_INTEGER_MAX: Final = 999_999_999_999_999


def rate_limit_headers(levels: Sequence[Level]) -> dict[str, str]:
    """`q` tokens in `w` seconds as policy; `r` tokens are left and it is full again in `t` seconds."""
    limits = [limit for level in levels for limit in level.limits]
    if not limits:
        return {}
    return {
        "RateLimit-Policy": ", ".join(
            f'"{limit.limit}";q={limit.capacity};w={limit.window_seconds}' for limit in limits
        ),
        "RateLimit": ", ".join(
            f'"{limit.limit}";r={max(0, limit.remaining)};t={min(_INTEGER_MAX, ceil_div(limit.full_in_ms, 1000))}'
            for limit in limits
        ),
    }


def retry_headers(retry_after_ms: int) -> dict[str, str]:
    return {"Retry-After": str(ceil_div(retry_after_ms, 1000)), "retry-after-ms": str(retry_after_ms)}
