"""ETags and If-Match (RFC 9110): a writer says which version it has seen.

A tag has the creation time too: what was removed and made again starts at version 1 once more.
"""

import re
from collections.abc import Callable
from typing import Final, TypeVar

from sluice.core.labels import InferenceProfile, LabelDefinition
from sluice.repository.items import Entity, StoredLimits
from sluice.repository.ledger_items import Ledger
from sluice.repository.orgs import App, Org

T = TypeVar("T")

# A comma may stand inside a tag. A weak one is matched with its prefix, and so equals no tag of ours.
_TAG: Final = re.compile(r'(?:W/)?"[^"]*"')


def limits_etag(stored: StoredLimits) -> str:
    return _tag(stored.created_at_ms, stored.config_version)


def entity_etag(entity: Entity) -> str:
    return _tag(entity.created_at_ms, entity.version)


def org_etag(org: Org) -> str:
    return _tag(org.created_at_ms, org.version)


def app_etag(app: App) -> str:
    return _tag(app.created_at_ms, app.version)


def label_etag(label: LabelDefinition) -> str:
    return _tag(label.created_at_ms, label.version)


def profile_etag(profile: InferenceProfile) -> str:
    return _tag(profile.created_at_ms, profile.version)


def budget_etag(ledger: Ledger) -> str:
    """Of what was asked: counters do not move it."""
    return _tag(ledger.created_at_ms, ledger.own_version)


def limits_if_match(header: str | None) -> Callable[[StoredLimits | None], bool]:
    return _precondition(header, limits_etag)


def entity_if_match(header: str | None) -> Callable[[Entity | None], bool]:
    return _precondition(header, entity_etag)


def org_if_match(header: str | None) -> Callable[[Org | None], bool]:
    return _precondition(header, org_etag)


def app_if_match(header: str | None) -> Callable[[App | None], bool]:
    return _precondition(header, app_etag)


def label_if_match(header: str | None) -> Callable[[LabelDefinition | None], bool]:
    return _precondition(header, label_etag)


def profile_if_match(header: str | None) -> Callable[[InferenceProfile | None], bool]:
    return _precondition(header, profile_etag)


def budget_if_match(header: str | None) -> Callable[[Ledger | None], bool]:
    return _precondition(header, budget_etag)


def _tag(created_at_ms: int, version: int) -> str:
    return f'"{created_at_ms}-{version}"'


def _precondition(header: str | None, etag: Callable[[T], str]) -> Callable[[T | None], bool]:
    """Any of the listed tags, or `*` alone for whatever exists. Weak tags never match."""
    if header is None:
        return lambda _stored: True
    if header.strip() == "*":
        return lambda stored: stored is not None
    tags = frozenset(_TAG.findall(header))
    return lambda stored: stored is not None and etag(stored) in tags
