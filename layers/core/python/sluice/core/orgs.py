"""Orgs and apps: their settings, how a change is merged into them, and what an app takes from its org."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, TypeVar

from sluice.core.changes import UNSET, Unset, kept
from sluice.core.errors import InvalidRequest
from sluice.core.timelines import (
    LEAD_MS,
    Calendar,
    Timeline,
    Zones,
    always,
    next_midnight_ms,
    planned,
    settled,
)

ORDERING_MAX: Final = 20
QUOTA_MAX_USD_MICROS: Final = 10**15
QUOTAS_MAX: Final = 100
SHARDS_MAX: Final = 64
THRESHOLD_MAX_PCT: Final = 99
INTERVAL_MIN_SECS: Final = 10
INTERVAL_MAX_SECS: Final = 3600

ZONE_DEFAULT: Final = "UTC"
SHARDS_DEFAULT: Final = 8
THRESHOLD_DEFAULT_PCT: Final = 95
NORMAL_DEFAULT_SECS: Final = 300
TIGHT_DEFAULT_SECS: Final = 60

T = TypeVar("T")


class EntityRole(StrEnum):
    """What an entity stands for: its org as a whole, an app, or anything else."""

    ORG = "org"
    APP = "app"
    OTHER = "other"


class QuotaScope(StrEnum):
    """What a quota is compared with: what the whole org spent, or the app that asks."""

    ORG = "ORG"
    APP = "APP"


_UTC: Final[Zones] = always(ZONE_DEFAULT)
_OF_ORG: Final[Timeline[QuotaScope]] = always(QuotaScope.ORG)


@dataclass(frozen=True, slots=True)
class OrgSettings:
    name: str | None = None
    zones: Zones = _UTC
    quota_scopes: Timeline[QuotaScope] = _OF_ORG
    model_ordering: tuple[str, ...] = ()
    quotas_usd_micros: Mapping[str, int] = field(default_factory=dict)
    sticky_fallback_enabled: bool = True
    counter_shards: int = SHARDS_DEFAULT
    auto_register_entities: bool = True
    accept_unpriced: bool = False
    suspended: bool = False
    tight_mode_threshold_pct: int = THRESHOLD_DEFAULT_PCT
    refresh_interval_normal_secs: int = NORMAL_DEFAULT_SECS
    refresh_interval_tight_secs: int = TIGHT_DEFAULT_SECS


@dataclass(frozen=True, slots=True)
class AppSettings:
    """None: as the org has it. Quotas are inherited label by label."""

    name: str | None = None
    suspended: bool = False
    model_ordering: tuple[str, ...] | None = None
    quotas_usd_micros: Mapping[str, int] = field(default_factory=dict)
    tight_mode_threshold_pct: int | None = None
    refresh_interval_normal_secs: int | None = None
    refresh_interval_tight_secs: int | None = None


@dataclass(frozen=True, slots=True)
class EffectiveSettings:
    """What holds for an app. `inherited`: the fields, and the quotas as `quotas.{label}`, that are the org's."""

    model_ordering: tuple[str, ...]
    quotas_usd_micros: Mapping[str, int]
    tight_mode_threshold_pct: int
    refresh_interval_normal_secs: int
    refresh_interval_tight_secs: int
    inherited: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AppChange:
    """What was sent. Quotas are merged label by label."""

    name: str | Unset | None = UNSET
    suspended: bool | Unset | None = UNSET
    model_ordering: tuple[str, ...] | Unset | None = UNSET
    quotas_usd_micros: Mapping[str, int | None] | Unset | None = UNSET
    tight_mode_threshold_pct: int | Unset | None = UNSET
    refresh_interval_normal_secs: int | Unset | None = UNSET
    refresh_interval_tight_secs: int | Unset | None = UNSET


@dataclass(frozen=True, slots=True)
class OrgChange(AppChange):
    timezone: str | Unset | None = UNSET
    quota_scope: QuotaScope | Unset | None = UNSET
    sticky_fallback_enabled: bool | Unset | None = UNSET
    counter_shards: int | Unset | None = UNSET
    auto_register_entities: bool | Unset | None = UNSET
    accept_unpriced: bool | Unset | None = UNSET


NEW_ORG: Final = OrgSettings()
NEW_APP: Final = AppSettings()


def merge_org(before: OrgSettings | None, change: OrgChange, now_ms: int, calendar: Calendar) -> OrgSettings:
    """The settings after a change. In a new org the zone and the scope hold at once, for all times."""
    was = NEW_ORG if before is None else before
    merged = replace(
        was,
        name=kept(change.name, was.name, None),
        model_ordering=kept(change.model_ordering, was.model_ordering, ()),
        quotas_usd_micros=_merge_quotas(was.quotas_usd_micros, change.quotas_usd_micros),
        sticky_fallback_enabled=kept(change.sticky_fallback_enabled, was.sticky_fallback_enabled, default=True),
        counter_shards=kept(change.counter_shards, was.counter_shards, SHARDS_DEFAULT),
        auto_register_entities=kept(change.auto_register_entities, was.auto_register_entities, default=True),
        accept_unpriced=kept(change.accept_unpriced, was.accept_unpriced, default=False),
        suspended=kept(change.suspended, was.suspended, default=False),
        tight_mode_threshold_pct=kept(
            change.tight_mode_threshold_pct, was.tight_mode_threshold_pct, THRESHOLD_DEFAULT_PCT
        ),
        refresh_interval_normal_secs=kept(
            change.refresh_interval_normal_secs, was.refresh_interval_normal_secs, NORMAL_DEFAULT_SECS
        ),
        refresh_interval_tight_secs=kept(
            change.refresh_interval_tight_secs, was.refresh_interval_tight_secs, TIGHT_DEFAULT_SECS
        ),
    )
    if before is not None and merged.counter_shards < before.counter_shards:
        # Readers sum the shards of the present count: what is in one beyond it would be lost.
        raise InvalidRequest("counter_shards", f"only grows, and is {before.counter_shards} already")
    _check_quotas(merged.model_ordering, merged.quotas_usd_micros)
    zone = kept(change.timezone, was.zones[-1].value, ZONE_DEFAULT)
    scope = kept(change.quota_scope, was.quota_scopes[-1].value, QuotaScope.ORG)
    if before is None:
        return replace(merged, zones=always(zone), quota_scopes=always(scope))
    return _with_plans(merged, zone, scope, now_ms, calendar)


def merge_app(org: OrgSettings, before: AppSettings | None, change: AppChange) -> AppSettings:
    """The overrides after a change, judged by what holds for the app with them."""
    was = NEW_APP if before is None else before
    merged = AppSettings(
        name=kept(change.name, was.name, None),
        suspended=kept(change.suspended, was.suspended, default=False),
        model_ordering=kept(change.model_ordering, was.model_ordering, None),
        quotas_usd_micros=_merge_quotas(was.quotas_usd_micros, change.quotas_usd_micros),
        tight_mode_threshold_pct=kept(change.tight_mode_threshold_pct, was.tight_mode_threshold_pct, None),
        refresh_interval_normal_secs=kept(change.refresh_interval_normal_secs, was.refresh_interval_normal_secs, None),
        refresh_interval_tight_secs=kept(change.refresh_interval_tight_secs, was.refresh_interval_tight_secs, None),
    )
    if not (isinstance(change.model_ordering, Unset) and isinstance(change.quotas_usd_micros, Unset)):
        # Only then: what the org took away since must not keep an app from being suspended.
        effective = effective_settings(org, merged)
        _check_quotas(effective.model_ordering, effective.quotas_usd_micros)
    return merged


def effective_settings(org: OrgSettings, app: AppSettings) -> EffectiveSettings:
    inherited = [
        name
        for name, own in (
            ("model_ordering", app.model_ordering),
            ("tight_mode_threshold_pct", app.tight_mode_threshold_pct),
            ("refresh_interval_normal_secs", app.refresh_interval_normal_secs),
            ("refresh_interval_tight_secs", app.refresh_interval_tight_secs),
        )
        if own is None
    ]
    inherited += [f"quotas.{label}" for label in org.quotas_usd_micros if label not in app.quotas_usd_micros]
    return EffectiveSettings(
        model_ordering=_own_or(app.model_ordering, org.model_ordering),
        quotas_usd_micros={**org.quotas_usd_micros, **app.quotas_usd_micros},
        tight_mode_threshold_pct=_own_or(app.tight_mode_threshold_pct, org.tight_mode_threshold_pct),
        refresh_interval_normal_secs=_own_or(app.refresh_interval_normal_secs, org.refresh_interval_normal_secs),
        refresh_interval_tight_secs=_own_or(app.refresh_interval_tight_secs, org.refresh_interval_tight_secs),
        inherited=tuple(sorted(inherited)),
    )


def _with_plans(settings: OrgSettings, zone: str, scope: QuotaScope, now_ms: int, calendar: Calendar) -> OrgSettings:
    """With the zone and the scope that are wanted in the end. Where the midnights move, a planned scope moves along."""
    zones, scopes = settings.zones, settings.quota_scopes
    if zone != zones[-1].value:
        fixed = settled(zones, now_ms)
        zones = planned(zones, zone, now_ms, next_midnight_ms(fixed, now_ms + LEAD_MS, calendar))
    if scope != scopes[-1].value or zones != settings.zones:
        scopes = planned(scopes, scope, now_ms, next_midnight_ms(zones, now_ms + LEAD_MS, calendar))
    return replace(settings, zones=zones, quota_scopes=scopes)


def _merge_quotas(before: Mapping[str, int], sent: Mapping[str, int | None] | Unset | None) -> Mapping[str, int]:
    if isinstance(sent, Unset):
        return before
    if sent is None:
        return {}
    merged = {**before, **sent}
    return {label: quota for label, quota in sorted(merged.items()) if quota is not None}


def _check_quotas(ordering: tuple[str, ...], quotas: Mapping[str, int]) -> None:
    if len(quotas) > QUOTAS_MAX:
        raise InvalidRequest("quotas", f"at most {QUOTAS_MAX} labels have a quota")
    for number, label in enumerate(ordering):
        if label in ordering[:number]:
            raise InvalidRequest("model_ordering", "names a label twice")
        if label not in quotas:
            raise InvalidRequest(f"quotas.{label}", "every label of model_ordering has a quota")


def _own_or(own: T | None, inherited: T) -> T:
    return inherited if own is None else own
