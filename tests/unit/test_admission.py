"""May this request pass, and what is the caller told?"""

import pytest

from sluice.core import admission, bucket, shards
from sluice.core.admission import Asked, Member
from sluice.core.errors import NeverAdmissible, NoLimits, UnknownLimit
from sluice.core.levels import Level
from sluice.core.limits import Limit, LimitSet, Source, resolve
from sluice.core.shards import View

NOW = 1_800_000_000_000
RPM = Limit(10, 10, 10, 60)
TPM = Limit(1000, 2000, 1000, 60)
LIMITS = resolve([(Source.RESOURCE, {"rpm": RPM}), (Source.SYSTEM, {"tpm": TPM, "off": None}), (Source.SYSTEM, {})])

ASKS = Member("e", LIMITS, asks=True)
ONLY_DEFAULTS = resolve([(Source.SYSTEM, {"rpm": RPM})])


def balances(limits: LimitSet, levels_milli: dict[str, int]) -> dict[str, int]:
    return {name: level - bucket.refill_milli(limits.parameters[name], NOW) for name, level in levels_milli.items()}


def test_demand_is_in_millitokens() -> None:
    assert admission.demand_milli("r", {"rpm": 1, "tpm": 0}, ASKS) == {"rpm": 1000, "tpm": 0}


def test_a_switched_off_limit_is_accepted_and_takes_nothing() -> None:
    off = resolve([(Source.RESOURCE, {"rpm": None}), (Source.SYSTEM, {"rpm": RPM, "tpm": TPM})])
    admission.check_names("e", "r", {"rpm": 99, "tpm": 1}, [Member("e", off, asks=True)])
    assert admission.demand_milli("r", {"rpm": 99, "tpm": 1}, Member("e", off, asks=True)) == {"tpm": 1000}
    only_off = resolve([(Source.RESOURCE, {"rpm": None})])
    assert admission.demand_milli("r", {"rpm": 99}, Member("e", only_off, asks=True)) == {}


def test_an_unknown_limit_names_its_field() -> None:
    with pytest.raises(UnknownLimit) as raised:
        admission.check_names("e", "r", {"rpm": 1, "nope": 1}, [ASKS])
    assert raised.value.field == "consume.nope"


def test_a_name_must_be_known_at_some_member_of_the_chain() -> None:
    above = Member("p", resolve([(Source.ENTITY, {"tpd": TPM}), (Source.SYSTEM, {"rpm": RPM})]), asks=False)
    consume = {"rpm": 1, "tpd": 1}
    admission.check_names("e", "r", consume, [ASKS, above])
    assert admission.demand_milli("r", consume, ASKS) == {"rpm": 1000}
    with pytest.raises(UnknownLimit):
        admission.check_names("e", "r", {"nope": 1}, [ASKS, above])


def test_a_member_above_takes_part_only_with_limits_of_its_own() -> None:
    limits = resolve([(Source.ENTITY_DEFAULT, {"tpd": TPM}), (Source.RESOURCE, {"rpm": RPM})])
    assert admission.demand_milli("r", {"rpm": 1, "tpd": 1}, Member("p", limits, asks=False)) == {"tpd": 1000}
    assert admission.demand_milli("r", {"rpm": 1, "tpd": 1}, Member("p", limits, asks=True)) == {
        "rpm": 1000,
        "tpd": 1000,
    }
    with pytest.raises(UnknownLimit):
        admission.check_names("e", "r", {"rpm": 1}, [Member("p", limits, asks=False)])


def test_a_chain_passes_when_its_last_member_does() -> None:
    seen = balances(LIMITS, {"rpm": 0, "tpm": 0})
    early = admission.refusal(Asked("e", "r", LIMITS, {"tpm": 1000}), seen, NOW, NOW)
    late = admission.refusal(Asked("p", "r", LIMITS, {"rpm": 1000}), seen, NOW, NOW)
    assert early is not None
    assert late is not None
    merged = admission.merged_refusal([early, late])
    assert (merged.retry_after_ms, merged.admit_at_ms) == (late.retry_after_ms, late.admit_at_ms)
    assert [violation.entity for violation in merged.violations] == ["e", "p"]
    assert [level.entity for level in merged.levels] == ["e", "p"]


def test_no_limits_at_all() -> None:
    with pytest.raises(NoLimits):
        admission.check_names(
            "e", "r", {"rpm": 1}, [Member("e", resolve([]), asks=True), Member("p", ONLY_DEFAULTS, asks=False)]
        )


def test_above_the_burst_is_never_admissible() -> None:
    assert admission.demand_milli("r", {"rpm": 10}, ASKS)
    with pytest.raises(NeverAdmissible) as raised:
        admission.demand_milli("r", {"rpm": 11}, ASKS)
    assert (raised.value.limit, raised.value.requested, raised.value.burst) == ("rpm", 11, 10)


def test_covered_demand_is_not_refused() -> None:
    seen = balances(LIMITS, {"rpm": 1000, "tpm": 0})
    assert admission.refusal(Asked("e", "r", LIMITS, {"rpm": 1000, "tpm": 0}), seen, NOW, NOW) is None


def test_a_refusal_names_every_short_limit_and_the_latest_time() -> None:
    seen = balances(LIMITS, {"rpm": 999, "tpm": -1000})
    refused = admission.refusal(Asked("e", "r", LIMITS, {"rpm": 2000, "tpm": 0}), seen, NOW, NOW)
    assert refused is not None
    rpm, tpm = refused.violations
    # Ten tokens a minute: 1001 millitokens take 6006 ms; a thousand a minute repay one token in 60 ms.
    assert (rpm.limit, rpm.requested, rpm.available, rpm.retry_after_ms, rpm.source) == ("rpm", 2, 0, 6006, "resource")
    assert (tpm.limit, tpm.requested, tpm.available, tpm.retry_after_ms, tpm.source) == ("tpm", 0, -1, 60, "system")
    assert (refused.retry_after_ms, refused.admit_at_ms) == (6006, NOW + 6006)


def test_an_image_is_judged_at_the_time_of_its_write() -> None:
    """Hole: at a later now the refill of the round trip looks like room, and everyone tries again."""
    seen = balances(LIMITS, {"rpm": 999})
    full = {**seen, "tpm": 0}
    later = NOW + 50
    assert admission.refusal(Asked("e", "r", LIMITS, {"rpm": 1000}), full, later, later) is None
    refused = admission.refusal(Asked("e", "r", LIMITS, {"rpm": 1000}), full, NOW, later)
    assert refused is not None
    assert refused.retry_after_ms == 1


def test_levels_are_whole_tokens_down() -> None:
    level = admission.level_of("e", LIMITS, {"rpm": 9999, "tpm": -1})
    rpm, tpm = level.limits
    assert (level.entity, rpm.remaining, tpm.remaining) == ("e", 9, -1)
    assert (rpm.capacity, rpm.window_seconds, rpm.full_in_ms) == (10, 60, 6)
    assert (tpm.capacity, tpm.window_seconds, tpm.full_in_ms) == (1000, 60, 120_001)


def test_levels_are_worked_out_once_and_only_when_asked_for() -> None:
    asked: list[int] = []

    def measure() -> tuple[Level, ...]:
        asked.append(1)
        return (Level("e", ()),)

    admitted = admission.Admission("ns", "e", "r", {"rpm": 1}, measure=measure)
    assert asked == []
    assert admitted.levels == admitted.levels == (Level("e", ()),)
    assert asked == [1]
    degraded = admission.Admission("ns", "e", "r", {"rpm": 1}, degraded=True)
    assert (degraded.levels, degraded.members) == ((), ())


def test_names_that_the_asking_entity_knows_are_known() -> None:
    admission.check_names("e", "r", {"rpm": 1, "tpm": 1}, [ASKS])


def test_a_refusal_of_a_split_bucket_adds_its_shards_up() -> None:
    """Ten tokens a minute on two shards: 1.5 and 2 are there, 6 are asked for."""
    views = [
        View(shard, parameters, {name: -bucket.refill_milli(one, NOW) + level for name, one in parameters.items()}, NOW)
        for shard, level in ((0, 1_500), (1, 2_000))
        if (parameters := LIMITS.shard_parameters(shard, 2))
    ]
    demand = {"rpm": 6_000}
    wait = shards.decide(views, demand, NOW)
    assert isinstance(wait, shards.Wait)
    refused = admission.split_refusal(Asked("e", "r", LIMITS, demand), views, wait, NOW)
    (violation,) = refused.violations
    assert (violation.requested, violation.available) == (6, 3)
    # 2500 millitokens at 10,000 a minute.
    assert (refused.retry_after_ms, refused.admit_at_ms) == (15_000, NOW + 15_000)
    assert refused.levels[0].limits[0].remaining == 3
