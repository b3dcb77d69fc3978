"""The request builders: clauses and guards of each write path. What they do to a table is tested on an engine."""

import re
from dataclasses import replace

import pytest

from sluice.core import bucket as math
from sluice.core.bucket import Form, Parameters
from sluice.repository import keys, writes
from sluice.repository.items import Bucket, BucketLimit
from sluice.repository.requests import UpdateRequest
from sluice.repository.writes import Target

NOW = 1_800_000_000_123
KEY = keys.bucket("ns", "e", "r", 0)
SLOW = Parameters(10_000, 10_000, 10_000, 60_000)
FAST = Parameters(1_000_000, 2_000_000, 1_000_000, 1_000)
FILL_MS = 60_000
DAY_S = 86_400
LEAST_S = -(-(NOW + FILL_MS) // 1000) + DAY_S
FRESH_S = -(-(NOW + 2 * FILL_MS) // 1000) + 2 * DAY_S
TARGET = Target(KEY, "f:1", {"slow": SLOW, "fast": FAST}, FILL_MS, expires=True)


def image(
    levels_milli: dict[str, int],
    expires_at_s: int | None = FRESH_S,
    parameters: dict[str, Parameters] | None = None,
) -> Bucket:
    known = parameters or {"slow": SLOW, "fast": FAST}
    limits = {
        name: BucketLimit(known[name], level - math.refill_milli(known[name], NOW), 7)
        for name, level in levels_milli.items()
    }
    return Bucket(
        key=KEY,
        namespace="ns",
        entity="e",
        resource="r",
        call_fingerprint=None,
        shard=0,
        shard_count=1,
        version=5,
        generation=99,
        limits_hash="f:1",
        cascade=False,
        parent=None,
        expires_at_s=expires_at_s,
        created_at_ms=1,
        limits=limits,
        retired_consumed_milli={},
    )


def clauses(request: UpdateRequest) -> tuple[dict[str, list[str]], list[str]]:
    """Update clauses by verb and the conditions, with the values put in."""
    values = request["ExpressionAttributeValues"]
    names = request.get("ExpressionAttributeNames", {})

    def filled(text: str) -> str:
        named = re.sub(r"#\w+", lambda match: names[match[0]] if match[0] != "#ttl" else "#ttl", text)
        return re.sub(r":\w+", lambda match: str(values[match[0]]), named)

    both = request["UpdateExpression"] + " " + request["ConditionExpression"]
    found = re.findall(r"(SET|ADD|REMOVE) (.*?)(?= SET | ADD | REMOVE |$)", request["UpdateExpression"])
    assert set(re.findall(r":\w+", both)) == set(values), "DynamoDB refuses values that are not used"
    assert set(re.findall(r"#\w+", both)) == set(names), "and names that are not used"
    assert "-" not in request["ConditionExpression"], "conditions have no arithmetic"
    updates = {verb: sorted(filled(part) for part in parts.split(", ")) for verb, parts in found}
    return updates, [
        filled(part)
        for part in re.split(r"(?<!BETWEEN :need_slow)(?<!BETWEEN :need_fast) AND ", request["ConditionExpression"])
    ]


def test_a_spend_is_guarded_by_need_and_top() -> None:
    request = writes.debit(TARGET, {"slow": 3000}, {"slow": Form.SPEND}, None, NOW)
    refill = math.refill_milli(SLOW, NOW)
    updates, conditions = clauses(request)
    assert request["Key"] == {"PK": KEY.pk, "SK": KEY.sk}
    assert updates == {"ADD": ["b_slow_tc 3000", "b_slow_tk -3000", "v 1"]}
    assert conditions == [
        "lh = f:1",
        f"b_slow_tk BETWEEN {3000 - refill} AND {10_000 - refill}",
        f"(attribute_not_exists(#ttl) OR #ttl >= {LEAST_S})",
    ]
    assert request["ExpressionAttributeNames"] == {"#ttl": "ttl"}


def test_a_spend_of_a_fast_limit_has_slack_above_the_top() -> None:
    _, conditions = clauses(writes.debit(TARGET, {"fast": 1}, {"fast": Form.SPEND}, None, NOW))
    top = 2_000_000 - math.refill_milli(FAST, NOW)
    assert conditions[1] == f"b_fast_tk BETWEEN {1 - math.refill_milli(FAST, NOW)} AND {top + 100_000}"


def test_a_spend_from_full_forgets_the_overflow() -> None:
    updates, conditions = clauses(writes.debit(TARGET, {"fast": 500}, {"fast": Form.SPEND_FROM_FULL}, None, NOW))
    top = 2_000_000 - math.refill_milli(FAST, NOW)
    assert updates == {"SET": [f"b_fast_tk = {top - 500}"], "ADD": ["b_fast_tc 500", "v 1"]}
    assert conditions[1] == f"b_fast_tk > {top}"


def test_zero_asks_only_for_the_floor() -> None:
    updates, conditions = clauses(writes.debit(TARGET, {"slow": 0}, {}, None, NOW))
    assert updates == {"ADD": ["v 1"]}
    assert conditions[1] == f"b_slow_tk >= {-math.refill_milli(SLOW, NOW)}"


def test_limits_that_are_not_named_are_not_touched() -> None:
    request = writes.debit(TARGET, {"slow": 1}, {"slow": Form.SPEND}, None, NOW)
    assert "fast" not in request["UpdateExpression"] + request["ConditionExpression"]


def test_no_form_is_built_above_the_burst() -> None:
    writes.debit(TARGET, {"slow": 10_000}, {"slow": Form.SPEND}, None, NOW)
    with pytest.raises(ValueError, match="above the burst"):
        writes.debit(TARGET, {"slow": 10_001}, {"slow": Form.SPEND}, None, NOW)


def test_a_ttl_that_is_near_is_moved_by_who_sees_it() -> None:
    forms = {"slow": Form.SPEND}
    updates, conditions = clauses(writes.debit(TARGET, {"slow": 1}, forms, LEAST_S - 1, NOW))
    assert updates["SET"] == [f"#ttl = {FRESH_S}"]
    assert conditions[-1] == f"#ttl = {LEAST_S - 1}"
    updates, conditions = clauses(writes.debit(TARGET, {"slow": 1}, forms, LEAST_S, NOW))
    assert "SET" not in updates
    assert conditions[-1] == f"(attribute_not_exists(#ttl) OR #ttl >= {LEAST_S})"


def test_a_moved_ttl_satisfies_the_next_debit() -> None:
    assert writes.expires_at_s(FILL_MS, NOW) == FRESH_S
    assert writes.least_expires_at_s(FILL_MS, NOW) == LEAST_S
    assert writes.expires_at_s(FILL_MS, NOW) >= writes.least_expires_at_s(FILL_MS, NOW + FILL_MS + DAY_S * 1000)


def test_an_adjustment_has_no_floor_and_lengthens_the_ttl_by_what_it_takes() -> None:
    seen = image({"slow": 4000, "fast": 5})
    updates, conditions = clauses(writes.adjust(seen, {"slow": 25_000}, NOW))
    assert updates == {
        "SET": ["#ttl = #ttl + 150"],
        "ADD": ["b_slow_tc 25000", "b_slow_tk -25000", "v 1"],
    }
    assert conditions == [
        "gen = 99",
        "lh = f:1",
        f"b_slow_tk <= {10_000 - math.refill_milli(SLOW, NOW)}",
        f"#ttl >= {LEAST_S}",
    ]


def test_an_adjustment_of_a_full_limit_starts_at_the_top() -> None:
    seen = image({"slow": 10_001, "fast": 5}, expires_at_s=None)
    updates, conditions = clauses(writes.adjust(seen, {"slow": 25_000}, NOW))
    top = 10_000 - math.refill_milli(SLOW, NOW)
    assert updates == {"SET": [f"b_slow_tk = {top - 25_000}"], "ADD": ["b_slow_tc 25000", "v 1"]}
    assert conditions[2:] == [f"b_slow_tk > {top}", "attribute_not_exists(#ttl)"]


def test_an_adjustment_that_sees_a_near_ttl_renews_it_with_its_own_time_on_top() -> None:
    seen = image({"slow": 0, "fast": 0}, expires_at_s=LEAST_S - 1)
    updates, conditions = clauses(writes.adjust(seen, {"slow": 1, "fast": 1}, NOW))
    assert f"#ttl = {FRESH_S + 1}" in updates["SET"]
    assert conditions[-1] == f"#ttl = {LEAST_S - 1}"


def test_a_give_back_needs_its_incarnation_and_every_limit_it_names() -> None:
    updates, conditions = clauses(writes.give_back(KEY, 99, {"slow": 1000, "fast": 5}))
    assert updates == {
        "ADD": ["b_fast_tc -5", "b_fast_tk 5", "b_slow_tc -1000", "b_slow_tk 1000", "v 1"],
    }
    assert conditions == ["gen = 99", "attribute_exists(b_slow_tk)", "attribute_exists(b_fast_tk)"]


def test_a_rebase_keeps_the_level_below_the_new_burst() -> None:
    seen = image({"slow": 4000})
    wider = Parameters(20_000, 20_000, 20_000, 60_000)
    updates, conditions = clauses(
        writes.rebase(seen, replace(TARGET, limits_hash="g:1", parameters={"slow": wider}), NOW)
    )
    old, new = math.refill_milli(SLOW, NOW), math.refill_milli(wider, NOW)
    assert f"b_slow_tk {old - new}" in updates["ADD"]
    assert conditions[:3] == ["gen = 99", "lh = f:1", f"b_slow_tk <= {10_000 - old}"]
    assert {"lh = g:1", "b_slow_cp = 20000", "b_slow_bx = 20000"} <= set(updates["SET"])


def test_a_rebase_cuts_the_level_to_the_lower_burst() -> None:
    seen = image({"slow": 8000})
    lower = Parameters(5_000, 5_000, 5_000, 60_000)
    updates, conditions = clauses(writes.rebase(seen, replace(TARGET, parameters={"slow": lower}), NOW))
    assert f"b_slow_tk = {5_000 - math.refill_milli(lower, NOW)}" in updates["SET"]
    assert conditions[2] == f"b_slow_tk > {5_000 - math.refill_milli(SLOW, NOW)}"


def test_a_rebase_adds_new_limits_full_and_removes_gone_ones_but_their_count() -> None:
    seen = image({"slow": 1000})
    updates, _ = clauses(writes.rebase(seen, replace(TARGET, parameters={"fast": FAST}), NOW))
    assert f"b_fast_tk = {math.top_milli(FAST, NOW)}" in updates["SET"]
    assert updates["ADD"] == ["b_fast_tc 0", "v 1"]
    assert updates["REMOVE"] == ["b_slow_bx", "b_slow_cp", "b_slow_ra", "b_slow_rp", "b_slow_tk"]


def test_a_rebase_gives_a_debt_the_time_to_be_repaid() -> None:
    """Hole: a ttl that forgives debt."""
    seen = image({"slow": -30_000}, expires_at_s=LEAST_S)
    updates, conditions = clauses(writes.rebase(seen, replace(TARGET, parameters={"slow": SLOW}), NOW))
    assert f"#ttl = {FRESH_S + 180}" in updates["SET"]
    assert conditions[-1] == f"#ttl = {LEAST_S}"


def test_a_debt_is_repaid_at_the_new_rate() -> None:
    seen = image({"slow": -30_000}, expires_at_s=LEAST_S)
    slower = Parameters(10_000, 10_000, 1_000, 60_000)
    updates, _ = clauses(writes.rebase(seen, replace(TARGET, parameters={"slow": slower}), NOW))
    assert f"#ttl = {FRESH_S + 1800}" in updates["SET"]


def test_the_largest_rebase_fits_into_an_expression() -> None:
    """Four levels may define ten limits each, under names of 32 characters, and replace as many."""

    def forty(first: str) -> dict[str, Parameters]:
        return {f"{first}{number:031d}": SLOW for number in range(40)}

    kept_and_gone = {**forty("a"), **forty("b")}
    seen = image(dict.fromkeys(kept_and_gone, 4000), parameters=kept_and_gone, expires_at_s=None)
    request = writes.rebase(seen, replace(TARGET, parameters={**forty("a"), "new": SLOW}), NOW)
    assert len(request["UpdateExpression"]) < 4096
    assert len(request["ConditionExpression"]) < 4096


def test_the_largest_debit_fits_into_an_expression() -> None:
    ten = {f"{number:x}".rjust(32, "a"): SLOW for number in range(10)}
    demand = dict.fromkeys(ten, 1)
    request = writes.debit(replace(TARGET, parameters=ten), demand, dict.fromkeys(ten, Form.SPEND), 1, NOW)
    assert len(request["UpdateExpression"]) < 4096
    assert len(request["ConditionExpression"]) < 4096


def test_an_adjustment_waits_for_the_slowest_limit_named_or_not() -> None:
    _, conditions = clauses(writes.adjust(image({"slow": 0, "fast": 0}), {"fast": 1}, NOW))
    assert conditions[-1] == f"#ttl >= {LEAST_S}"


def test_a_rebase_never_shortens_a_ttl() -> None:
    seen = image({"slow": 0}, expires_at_s=FRESH_S + 999)
    updates, _ = clauses(writes.rebase(seen, replace(TARGET, parameters={"slow": SLOW}), NOW))
    assert f"#ttl = {FRESH_S + 999}" in updates["SET"]


def test_a_rebase_to_own_limits_removes_the_ttl() -> None:
    own = replace(TARGET, parameters={"slow": SLOW}, expires=False)
    updates, conditions = clauses(writes.rebase(image({"slow": 0}), own, NOW))
    assert updates["REMOVE"] == ["#ttl"]
    assert conditions[-1] == f"#ttl = {FRESH_S}"
    updates, conditions = clauses(writes.rebase(image({"slow": 0}, expires_at_s=None), own, NOW))
    assert "REMOVE" not in updates
    assert conditions[-1] == "attribute_not_exists(#ttl)"


def test_a_rebase_that_gives_a_first_ttl_fails_on_debts_it_has_not_seen() -> None:
    seen = image({"slow": 4000, "fast": -5_000_000}, expires_at_s=None)
    updates, conditions = clauses(
        writes.rebase(seen, replace(TARGET, parameters={"slow": SLOW, "fast": FAST, "new": SLOW}), NOW)
    )
    assert f"#ttl = {FRESH_S + 5}" in updates["SET"]
    slow, fast = (seen.limits[name].balance_milli for name in ("slow", "fast"))
    assert conditions[-2:] == [f"b_slow_tk >= {slow - 4000}", f"b_fast_tk >= {fast}"]
    assert "attribute_not_exists(#ttl)" in conditions


def test_a_new_bucket_is_full_less_the_demand_and_is_put_only_if_absent() -> None:
    limits = writes.full_less(TARGET, {"slow": 7000}, NOW)
    assert limits["slow"] == BucketLimit(SLOW, math.top_milli(SLOW, NOW) - 7000, 7000)
    assert limits["fast"] == BucketLimit(FAST, math.top_milli(FAST, NOW), 0)
    request = writes.create(replace(image({}), limits=limits))
    assert request["ConditionExpression"] == "attribute_not_exists(PK)"
    assert request["Item"]["GSI2PK"] == "ns/RESOURCE#r"
    assert request["Item"]["b_slow_tc"] == 7000


def test_a_debit_may_ask_for_one_incarnation() -> None:
    request = writes.debit(TARGET, {"slow": 1000}, {"slow": Form.SPEND}, None, NOW, generation=99)
    assert "gen = :gen" in request["ConditionExpression"]
    assert request["ExpressionAttributeValues"][":gen"] == 99
