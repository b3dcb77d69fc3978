"""Bodies and answers of orgs and apps."""

from typing import Annotated, Final, Literal

from pydantic import BaseModel, Field, JsonValue

from sluice.core import orgs
from sluice.core.changes import UNSET, Unset
from sluice.core.identity import GRACE_HOURS_DEFAULT, GRACE_HOURS_MAX
from sluice.core.orgs import AppChange, OrgChange, QuotaScope
from sluice.core.timelines import From, in_force, upcoming
from sluice.edge.conventions import Page
from sluice.edge.models import Id, Strict
from sluice.edge.problems import rfc3339
from sluice.repository.orgs import Org
from sluice.services.apps import AppOfOrg
from sluice.services.credentials import Rotated
from sluice.services.listing import Listed

NAME_MAX: Final = 128
ZONE_NAME_MAX: Final = 64

# The document would else allow every other name as well: a pattern of names says nothing about the rest.
_NAMED_ONLY: Final[dict[str, JsonValue]] = {"additionalProperties": False}

_Name = Annotated[str, Field(min_length=1, max_length=NAME_MAX)]
_Zone = Annotated[str, Field(min_length=1, max_length=ZONE_NAME_MAX)]
_Ordering = Annotated[list[Id], Field(min_length=1, max_length=orgs.ORDERING_MAX)]
_Quota = Annotated[int, Field(ge=0, le=orgs.QUOTA_MAX_USD_MICROS)]
_Quotas = Annotated[dict[Id, _Quota | None], Field(max_length=orgs.QUOTAS_MAX, json_schema_extra=_NAMED_ONLY)]
_Threshold = Annotated[int, Field(ge=1, le=orgs.THRESHOLD_MAX_PCT)]
_Interval = Annotated[int, Field(ge=orgs.INTERVAL_MIN_SECS, le=orgs.INTERVAL_MAX_SECS)]
_Shards = Annotated[int, Field(ge=1, le=orgs.SHARDS_MAX)]
_Grace = Annotated[int, Field(ge=0, le=GRACE_HOURS_MAX)]


class AppBody(Strict):
    """Only what was sent is changed. null: as the org has it; of a quota, that label alone."""

    name: _Name | None = None
    suspended: bool | None = Field(default=None, description="null is false")
    model_ordering: _Ordering | None = None
    quotas: _Quotas | None = Field(default=None, description="in millionths of a dollar a day, by label")
    tight_mode_threshold_pct: _Threshold | None = None
    refresh_interval_normal_secs: _Interval | None = None
    refresh_interval_tight_secs: _Interval | None = None

    def to_change(self) -> AppChange:
        return AppChange(
            name=self.name if self._has("name") else UNSET,
            suspended=self.suspended if self._has("suspended") else UNSET,
            model_ordering=self._ordering(),
            quotas_usd_micros=self.quotas if self._has("quotas") else UNSET,
            tight_mode_threshold_pct=self.tight_mode_threshold_pct if self._has("tight_mode_threshold_pct") else UNSET,
            refresh_interval_normal_secs=(
                self.refresh_interval_normal_secs if self._has("refresh_interval_normal_secs") else UNSET
            ),
            refresh_interval_tight_secs=(
                self.refresh_interval_tight_secs if self._has("refresh_interval_tight_secs") else UNSET
            ),
        )

    def _has(self, name: str) -> bool:
        return name in self.model_fields_set

    def _ordering(self) -> tuple[str, ...] | Unset | None:
        if not self._has("model_ordering"):
            return UNSET
        return None if self.model_ordering is None else tuple(self.model_ordering)


class OrgBody(AppBody):
    """Only what was sent is changed. null: the default; of a quota, that label alone."""

    timezone: _Zone | None = Field(default=None, description="an IANA name; a change acts at a local midnight")
    quota_scope: Literal["ORG", "APP"] | None = Field(default=None, description="a change acts at a local midnight")
    sticky_fallback_enabled: bool | None = None
    counter_shards: _Shards | None = Field(default=None, description="only grows")
    auto_register_entities: bool | None = None
    accept_unpriced: bool | None = None

    def to_org_change(self) -> OrgChange:
        shared = self.to_change()
        return OrgChange(
            name=shared.name,
            suspended=shared.suspended,
            model_ordering=shared.model_ordering,
            quotas_usd_micros=shared.quotas_usd_micros,
            tight_mode_threshold_pct=shared.tight_mode_threshold_pct,
            refresh_interval_normal_secs=shared.refresh_interval_normal_secs,
            refresh_interval_tight_secs=shared.refresh_interval_tight_secs,
            timezone=self.timezone if self._has("timezone") else UNSET,
            quota_scope=self._scope(),
            sticky_fallback_enabled=self.sticky_fallback_enabled if self._has("sticky_fallback_enabled") else UNSET,
            counter_shards=self.counter_shards if self._has("counter_shards") else UNSET,
            auto_register_entities=self.auto_register_entities if self._has("auto_register_entities") else UNSET,
            accept_unpriced=self.accept_unpriced if self._has("accept_unpriced") else UNSET,
        )

    def _scope(self) -> QuotaScope | Unset | None:
        if not self._has("quota_scope"):
            return UNSET
        return None if self.quota_scope is None else QuotaScope(self.quota_scope)


class RotateBody(Strict):
    grace_period_hours: _Grace = Field(
        default=GRACE_HOURS_DEFAULT, description="how long the secret before still works; 0 ends its tokens too"
    )


# `from` is a word of Python's, so this one is built by its alias.
class NextAnswer(BaseModel):
    """A change that is planned."""

    value: str
    begins_at: str = Field(alias="from")

    @classmethod
    def of(cls, planned: From[str] | From[QuotaScope] | None) -> "NextAnswer | None":
        if planned is None:
            return None
        return cls.model_validate({"value": str(planned.value), "from": rfc3339(planned.from_ms)})


class SettingsAnswer(BaseModel):
    """What orgs and apps have in common."""

    name: str | None
    suspended: bool
    model_ordering: list[str]
    quotas: dict[str, int]
    tight_mode_threshold_pct: int
    refresh_interval_normal_secs: int
    refresh_interval_tight_secs: int
    client_id: str
    created_at: str
    updated_at: str


class OrgAnswer(SettingsAnswer):
    org: str
    timezone: str = Field(description="in force now")
    timezone_next: NextAnswer | None
    quota_scope: str = Field(description="in force now")
    quota_scope_next: NextAnswer | None
    sticky_fallback_enabled: bool
    counter_shards: int
    auto_register_entities: bool
    accept_unpriced: bool

    @classmethod
    def of(cls, org: Org, now_ms: int) -> "OrgAnswer":
        settings = org.settings
        return cls(
            org=org.org,
            name=settings.name,
            suspended=settings.suspended,
            timezone=in_force(settings.zones, now_ms),
            timezone_next=NextAnswer.of(upcoming(settings.zones, now_ms)),
            quota_scope=in_force(settings.quota_scopes, now_ms).value,
            quota_scope_next=NextAnswer.of(upcoming(settings.quota_scopes, now_ms)),
            model_ordering=list(settings.model_ordering),
            quotas=dict(settings.quotas_usd_micros),
            sticky_fallback_enabled=settings.sticky_fallback_enabled,
            counter_shards=settings.counter_shards,
            auto_register_entities=settings.auto_register_entities,
            accept_unpriced=settings.accept_unpriced,
            tight_mode_threshold_pct=settings.tight_mode_threshold_pct,
            refresh_interval_normal_secs=settings.refresh_interval_normal_secs,
            refresh_interval_tight_secs=settings.refresh_interval_tight_secs,
            client_id=org.client_id,
            created_at=rfc3339(org.created_at_ms),
            updated_at=rfc3339(org.updated_at_ms),
        )


class NewOrgAnswer(OrgAnswer):
    client_secret: str = Field(description="shown this once")


class AppAnswer(SettingsAnswer):
    """What holds for the app, its org's settings included."""

    app: str
    org: str
    inherited: list[str] = Field(description="the fields, and the quotas as quotas.{label}, that are the org's")

    @classmethod
    def of(cls, found: AppOfOrg) -> "AppAnswer":
        app, effective = found.app, found.effective
        return cls(
            app=app.app,
            org=found.org.org,
            name=app.settings.name,
            suspended=app.settings.suspended,
            model_ordering=list(effective.model_ordering),
            quotas=dict(effective.quotas_usd_micros),
            tight_mode_threshold_pct=effective.tight_mode_threshold_pct,
            refresh_interval_normal_secs=effective.refresh_interval_normal_secs,
            refresh_interval_tight_secs=effective.refresh_interval_tight_secs,
            inherited=list(effective.inherited),
            client_id=app.client_id,
            created_at=rfc3339(app.created_at_ms),
            updated_at=rfc3339(app.updated_at_ms),
        )


class NewAppAnswer(AppAnswer):
    client_secret: str = Field(description="shown this once")


class OrgPage(Page):
    items: list[OrgAnswer]

    @classmethod
    def of(cls, listed: Listed[Org], now_ms: int) -> "OrgPage":
        return cls(items=[OrgAnswer.of(org, now_ms) for org in listed.items], next_cursor=listed.next_cursor)


class AppPage(Page):
    items: list[AppAnswer]

    @classmethod
    def of(cls, listed: Listed[AppOfOrg]) -> "AppPage":
        return cls(items=[AppAnswer.of(found) for found in listed.items], next_cursor=listed.next_cursor)


class RotatedAnswer(BaseModel):
    client_id: str
    client_secret: str = Field(description="shown this once")
    old_secret_expires_at: str

    @classmethod
    def of(cls, rotated: Rotated) -> "RotatedAnswer":
        return cls(
            client_id=rotated.client_id,
            client_secret=rotated.client_secret,
            old_secret_expires_at=rfc3339(rotated.old_secret_expires_at_ms),
        )
