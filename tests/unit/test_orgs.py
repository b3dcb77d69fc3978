"""Settings of orgs and apps: how changes are merged, and what an app inherits."""

from dataclasses import replace
from typing import Any

import pytest

from sluice.core.changes import UNSET
from sluice.core.errors import InvalidRequest
from sluice.core.orgs import (
    QUOTAS_MAX,
    AppChange,
    AppSettings,
    OrgChange,
    OrgSettings,
    QuotaScope,
    effective_settings,
    merge_app,
    merge_org,
)
from sluice.core.timelines import LEAD_MS, From, always
from tests.unit.test_timelines import DAY, HOUR, NOON, Offsets

ORDERED = OrgChange(model_ordering=("big", "small"), quotas_usd_micros={"big": 5, "small": 7})
MIDNIGHT = NOON + 12 * HOUR


def merged(before: OrgSettings | None, change: OrgChange, now_ms: int = NOON) -> OrgSettings:
    return merge_org(before, change, now_ms, Offsets())


def refused(call: Any, *arguments: Any) -> str:
    with pytest.raises(InvalidRequest) as raised:
        call(*arguments)
    return raised.value.field


def existing(**fields: Any) -> OrgSettings:
    return replace(OrgSettings(zones=always("0")), **fields)


def test_an_app_is_suspended_whatever_its_org_took_away() -> None:
    """Hole: a quota that the org removed is asked of whoever changes anything else of the app."""
    org = OrgSettings(quotas_usd_micros={"a": 1})
    app = AppSettings(model_ordering=("b",))
    assert merge_app(org, app, AppChange(suspended=True)).suspended
    with pytest.raises(InvalidRequest):
        merge_app(org, app, AppChange(quotas_usd_micros={"a": 2}))


def test_a_new_org_has_the_defaults() -> None:
    made = merged(None, OrgChange())
    assert made == OrgSettings(
        name=None,
        zones=(From(0, "UTC"),),
        quota_scopes=(From(0, QuotaScope.ORG),),
        model_ordering=(),
        quotas_usd_micros={},
        sticky_fallback_enabled=True,
        counter_shards=8,
        auto_register_entities=True,
        accept_unpriced=False,
        suspended=False,
        tight_mode_threshold_pct=95,
        refresh_interval_normal_secs=300,
        refresh_interval_tight_secs=60,
    )


FULL = OrgChange(
    name="Acme",
    suspended=True,
    model_ordering=("big",),
    quotas_usd_micros={"big": 5},
    tight_mode_threshold_pct=80,
    refresh_interval_normal_secs=100,
    refresh_interval_tight_secs=10,
    timezone="2",
    quota_scope=QuotaScope.APP,
    sticky_fallback_enabled=False,
    counter_shards=9,
    auto_register_entities=False,
    accept_unpriced=True,
)


def test_what_was_sent_is_taken_and_the_rest_is_kept() -> None:
    made = merged(None, FULL)
    assert made == OrgSettings(
        name="Acme",
        zones=always("2"),
        quota_scopes=always(QuotaScope.APP),
        model_ordering=("big",),
        quotas_usd_micros={"big": 5},
        sticky_fallback_enabled=False,
        counter_shards=9,
        auto_register_entities=False,
        accept_unpriced=True,
        suspended=True,
        tight_mode_threshold_pct=80,
        refresh_interval_normal_secs=100,
        refresh_interval_tight_secs=10,
    )
    assert merged(made, OrgChange()) == made
    assert merged(made, FULL) == made
    assert merged(made, OrgChange(name="Other")) == replace(made, name="Other")


def test_null_clears_to_the_default() -> None:
    made = merged(None, replace(FULL, counter_shards=UNSET, timezone=UNSET, quota_scope=UNSET))
    cleared = OrgChange(
        name=None,
        suspended=None,
        model_ordering=None,
        quotas_usd_micros=None,
        tight_mode_threshold_pct=None,
        refresh_interval_normal_secs=None,
        refresh_interval_tight_secs=None,
        timezone=None,
        quota_scope=None,
        sticky_fallback_enabled=None,
        counter_shards=None,
        auto_register_entities=None,
        accept_unpriced=None,
    )
    assert merged(made, cleared) == OrgSettings()


def test_quotas_are_merged_by_label() -> None:
    made = merged(None, ORDERED)
    changed = merged(made, OrgChange(quotas_usd_micros={"small": 0, "other": 1}))
    assert changed.quotas_usd_micros == {"big": 5, "small": 0, "other": 1}
    assert merged(changed, OrgChange(quotas_usd_micros={"other": None})).quotas_usd_micros == {"big": 5, "small": 0}


def test_every_label_of_the_ordering_has_a_quota_after_the_merge() -> None:
    assert refused(merged, None, OrgChange(model_ordering=("big", "small"), quotas_usd_micros={"big": 5})) == (
        "quotas.small"
    )
    made = merged(None, ORDERED)
    assert refused(merged, made, OrgChange(quotas_usd_micros={"big": None})) == "quotas.big"
    assert refused(merged, made, OrgChange(quotas_usd_micros=None)) == "quotas.big"
    assert refused(merged, made, OrgChange(model_ordering=("new",))) == "quotas.new"
    assert merged(made, OrgChange(model_ordering=("new",), quotas_usd_micros={"new": 0})).model_ordering == ("new",)
    both = OrgChange(model_ordering=None, quotas_usd_micros=None)
    assert merged(made, both) == merged(None, OrgChange())


def test_an_ordering_names_a_label_once() -> None:
    assert refused(merged, None, replace(ORDERED, model_ordering=("big", "small", "big"))) == "model_ordering"


def test_the_number_of_quotas_is_bounded_after_the_merge() -> None:
    half = {f"a{number}": 1 for number in range(QUOTAS_MAX)}
    made = merged(None, OrgChange(quotas_usd_micros=half))
    assert refused(merged, made, OrgChange(quotas_usd_micros={"b": 1})) == "quotas"
    assert len(merged(made, OrgChange(quotas_usd_micros={"b": 1, "a0": None})).quotas_usd_micros) == QUOTAS_MAX


def test_counter_shards_only_grow() -> None:
    made = merged(None, OrgChange(counter_shards=2))
    assert made.counter_shards == 2
    grown = merged(made, OrgChange(counter_shards=64))
    assert refused(merged, grown, OrgChange(counter_shards=63)) == "counter_shards"
    # The default is less than what there is.
    assert refused(merged, grown, OrgChange(counter_shards=None)) == "counter_shards"
    assert merged(grown, OrgChange(counter_shards=64)) == grown


def test_a_zone_changes_at_a_midnight_of_the_old_one() -> None:
    changed = merged(existing(), OrgChange(timezone="5"))
    assert changed.zones == (From(0, "0"), From(MIDNIGHT, "5"))
    # Asked for again, nothing moves, also when the midnight has come near.
    assert merged(changed, OrgChange(timezone="5"), MIDNIGHT - 1) == changed
    assert merged(changed, OrgChange(name=None), MIDNIGHT + DAY) == changed


@pytest.mark.parametrize(("before_ms", "after_ms"), [(LEAD_MS, 0), (LEAD_MS - 1, DAY), (0, DAY)])
def test_the_midnight_is_two_minutes_away(before_ms: int, after_ms: int) -> None:
    changed = merged(existing(), OrgChange(timezone="5", quota_scope=QuotaScope.APP), MIDNIGHT - before_ms)
    assert changed.zones[-1].from_ms == MIDNIGHT + after_ms


def test_a_zone_that_has_not_begun_is_replaced() -> None:
    changed = merged(existing(), OrgChange(timezone="5"))
    assert merged(changed, OrgChange(timezone="-3")).zones == (From(0, "0"), From(MIDNIGHT, "-3"))
    assert merged(changed, OrgChange(timezone="0")) == existing()
    assert merged(changed, OrgChange(timezone=None)).zones == (From(0, "0"), From(MIDNIGHT, "UTC"))


def test_a_zone_that_is_about_to_begin_is_followed_by_the_next() -> None:
    changed = merged(existing(), OrgChange(timezone="5"))
    back = merged(changed, OrgChange(timezone="0"), MIDNIGHT - 1)
    assert back.zones == (From(0, "0"), From(MIDNIGHT, "5"), From(MIDNIGHT + 19 * HOUR, "0"))


def test_a_scope_changes_at_the_next_midnight() -> None:
    changed = merged(existing(), OrgChange(quota_scope=QuotaScope.APP))
    assert changed.quota_scopes == (From(0, QuotaScope.ORG), From(MIDNIGHT, QuotaScope.APP))
    assert merged(changed, OrgChange(quota_scope=None)) == existing()
    assert merged(changed, OrgChange(quota_scope=QuotaScope.APP), MIDNIGHT - 1) == changed


def test_a_scope_changes_at_a_midnight_of_the_zone_that_will_be() -> None:
    """In the west the day goes on when the old zone's has ended."""
    both = merged(existing(), OrgChange(timezone="-3", quota_scope=QuotaScope.APP))
    assert both.zones[-1] == From(MIDNIGHT, "-3")
    assert both.quota_scopes[-1] == From(MIDNIGHT + 3 * HOUR, QuotaScope.APP)


def test_a_planned_scope_moves_with_the_midnights() -> None:
    changed = merged(existing(), OrgChange(quota_scope=QuotaScope.APP))
    moved = merged(changed, OrgChange(timezone="-3"))
    assert moved.quota_scopes[-1] == From(MIDNIGHT + 3 * HOUR, QuotaScope.APP)
    assert merged(moved, OrgChange(timezone="0")) == changed
    # One that has begun does not.
    begun = merged(changed, OrgChange(timezone="-3"), MIDNIGHT + HOUR)
    assert begun.quota_scopes == changed.quota_scopes


ORG = merge_org(None, replace(ORDERED, tight_mode_threshold_pct=90), NOON, Offsets())


def test_an_app_takes_what_it_does_not_set_from_its_org() -> None:
    app = merge_app(ORG, None, AppChange(name="Bot"))
    assert app == AppSettings(name="Bot")
    effective = effective_settings(ORG, app)
    assert effective.model_ordering == ("big", "small")
    assert effective.quotas_usd_micros == {"big": 5, "small": 7}
    assert (effective.tight_mode_threshold_pct, effective.refresh_interval_normal_secs) == (90, 300)
    assert effective.refresh_interval_tight_secs == 60
    assert effective.inherited == (
        "model_ordering",
        "quotas.big",
        "quotas.small",
        "refresh_interval_normal_secs",
        "refresh_interval_tight_secs",
        "tight_mode_threshold_pct",
    )


def test_an_app_overrides_field_by_field_and_label_by_label() -> None:
    change = AppChange(
        suspended=True,
        model_ordering=("own", "small"),
        quotas_usd_micros={"own": 1, "small": 2},
        tight_mode_threshold_pct=50,
        refresh_interval_normal_secs=20,
        refresh_interval_tight_secs=10,
    )
    app = merge_app(ORG, None, change)
    effective = effective_settings(ORG, app)
    assert (effective.model_ordering, effective.inherited) == (("own", "small"), ("quotas.big",))
    assert effective.quotas_usd_micros == {"big": 5, "small": 2, "own": 1}
    assert (effective.tight_mode_threshold_pct, effective.refresh_interval_normal_secs) == (50, 20)
    assert effective.refresh_interval_tight_secs == 10
    assert merge_app(ORG, app, AppChange()) == app
    inherits = AppChange(
        suspended=None,
        model_ordering=None,
        quotas_usd_micros=None,
        tight_mode_threshold_pct=None,
        refresh_interval_normal_secs=None,
        refresh_interval_tight_secs=None,
    )
    assert merge_app(ORG, app, inherits) == AppSettings()


def test_an_app_is_judged_by_what_holds_for_it() -> None:
    assert refused(merge_app, ORG, None, AppChange(model_ordering=("own",))) == "quotas.own"
    assert merge_app(ORG, None, AppChange(model_ordering=("big",))).model_ordering == ("big",)
    own = merge_app(ORG, None, AppChange(model_ordering=("own",), quotas_usd_micros={"own": 1}))
    assert refused(merge_app, ORG, own, AppChange(quotas_usd_micros={"own": None})) == "quotas.own"
    # The org's own quota comes back.
    with_small = merge_app(ORG, None, AppChange(quotas_usd_micros={"small": 1}))
    assert merge_app(ORG, with_small, AppChange(quotas_usd_micros={"small": None})) == AppSettings()
