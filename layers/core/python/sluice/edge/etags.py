"""ETags and If-Match (RFC 9110): a writer says which version it has seen."""

from sluice.repository.items import StoredLimits
from sluice.services.limits import Precondition, any_version


def limits_etag(stored: StoredLimits) -> str:
    """With the creation time: a level that was removed and made again starts at version 1 once more."""
    return f'"{stored.created_at_ms}-{stored.config_version}"'


def if_match(header: str | None) -> Precondition:
    """Any of the listed tags, or `*` for whatever exists. Weak tags never match."""
    if header is None:
        return any_version
    tags = {tag.strip() for tag in header.split(",")}

    def matches(stored: StoredLimits | None) -> bool:
        return stored is not None and ("*" in tags or limits_etag(stored) in tags)

    return matches
