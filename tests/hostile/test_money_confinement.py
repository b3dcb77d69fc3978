"""Usage, leases, events and selection of somebody else: not to be read, changed, closed or guessed."""

from collections.abc import Mapping
from typing import Any

import pytest

from sluice.core.identity import Role
from sluice.core.orgs import OrgSettings
from sluice.repository.wire import Item
from tests.hostile.gateway import Answer
from tests.hostile.product import PROFILE_ARN, Product
from tests.hostile.test_confinement import (
    APP,
    CALLERS,
    CANARY,
    LABEL,
    OTHER_APP,
    OWNER,
    STRANGER,
    furnished,
    headers,
    usage_of,
)
from tests.tenancy import tenant_items

AS_OWNER = (OWNER, OWNER, Role.ORG)
AS_APP = (OWNER, APP, Role.APP)
AS_OTHER_APP = CALLERS["another app of the org"]
AS_STRANGER = CALLERS["another tenant's org"]
FALLBACK = {"model_id": "m", "input_price_usd_micros_per_1m": 10**6, "output_price_usd_micros_per_1m": 10**6}
COUNTED = frozenset({"usage_event", "cost_shard", "daily_total", "sticky_state", "lease"})


def ask(product: Product, caller: tuple[str, str, Role], method: str, target: str, body: object = None) -> Answer:
    return product.call(method, target, body, headers(product, *caller))


def defined(product: Product, caller: tuple[str, str, Role], label: str = "plain") -> str:
    """A label that all apps of the caller's org have."""
    assert ask(product, caller, "PUT", f"/v1/labels/{label}", FALLBACK).status in (200, 201)
    return label


def report(product: Product, caller: tuple[str, str, Role], **said: object) -> Answer:
    return ask(product, caller, "POST", "/v1/usage", {"request_id": "r-1", "label": "plain", **TOKENS, **said})


TOKENS: Mapping[str, Any] = {"input_tokens": 1, "output_tokens": 1, "status": "ok"}


def of_kinds(product: Product, *kinds: str) -> list[Item]:
    return [item for item in product.table.items() if item["kind"] in kinds]


@pytest.mark.parametrize("who", CALLERS)
def test_a_lease_of_somebody_else_is_told_from_a_forged_one_by_nobody(who: str) -> None:
    product, owned = furnished()
    caller = CALLERS[who]
    for one in (AS_OWNER, AS_STRANGER):
        defined(product, one)
    forged = owned.lease[:-1] + ("A" if owned.lease[-1] != "A" else "B")
    leases = (owned.lease, forged, "", "x" * 9000)
    before = product.items_of(OWNER)
    answers = {
        report(product, caller, lease=lease, **more).body
        for lease in leases
        for more in ({}, {"entity": owned.entity}, {"entity": "user-of-nobody"})
    }
    (body,) = answers
    assert b"invalid-lease" in body
    assert product.items_of(OWNER) == before
    # Settled with its usage as little.
    answers = {
        ask(
            product,
            caller,
            "POST",
            "/v1/leases/settle",
            {"lease": lease, "actual": {}, "usage": {"request_id": "r-1", "label": "plain", **TOKENS, **more}},
        ).body
        for lease in leases
        for more in ({}, {"entity": owned.entity}, {"entity": "user-of-nobody"})
    }
    assert answers == {body}
    assert product.items_of(OWNER) == before
    # And its owner's app closes it with the same words.
    assert report(product, AS_APP, entity=owned.entity, lease=owned.lease).status == 202
    assert {item["state"] for item in of_kinds(product, "lease")} == {"settled"}


def test_a_request_id_is_the_callers_own() -> None:
    """What another app or tenant has reported under it is neither a repeat nor a conflict."""
    product, _ = furnished()
    for one in (AS_OWNER, AS_STRANGER):
        defined(product, one)
    callers = (AS_OWNER, AS_APP, AS_OTHER_APP, AS_STRANGER)
    for number, caller in enumerate(callers):
        answer = report(product, caller, output_tokens=number + 1)
        assert (answer.status, answer.json()["duplicate"]) == (202, False)
    for number, caller in enumerate(callers):
        assert report(product, caller, output_tokens=number + 1).json()["duplicate"] is True
        assert report(product, caller, output_tokens=99).status == 409


def test_a_batch_does_for_its_own_what_it_must_not_for_others() -> None:
    product, owned = furnished()
    defined(product, AS_OWNER)
    before = [item for item in of_kinds(product, *COUNTED) if APP in str(item) or item.get("entity_id") == OWNER]
    foreign = (owned.entity, APP, OWNER, "user-of-nobody")
    events = [
        {"request_id": f"r-{number}", "label": "plain", **TOKENS, **({} if entity is None else {"entity": entity})}
        for number, entity in enumerate((*foreign, None))
    ]
    answer = ask(product, AS_OTHER_APP, "POST", "/v1/usage/batch", {"events": events}).json()
    assert [result.get("status") for result in answer["results"]] == [404, 404, 404, 404, 202]
    told = {str({**result["problem"]}) for result in answer["results"][:4]}
    assert len(told) == 1
    counted = [item for item in of_kinds(product, "cost_shard") if item["entity_id"] == OTHER_APP]
    assert sum(int(str(item["requests"])) for item in counted) == 1
    after = [item for item in of_kinds(product, *COUNTED) if APP in str(item) or item.get("entity_id") == OWNER]
    assert after == before


def test_events_are_shown_to_whom_they_belong() -> None:
    product, owned = furnished()
    for label in ("plain", LABEL):
        defined(product, AS_OWNER, label)
    assert report(product, AS_OTHER_APP, request_id="of-other", label=LABEL).status == 202
    assert report(product, AS_OWNER, request_id="of-org", tags={"t": "v"}).status == 202

    # By its totals the org finds out which apps reported anything.
    assert ask(product, AS_OWNER, "POST", "/v1/aggregates/rollup", {"entity": OTHER_APP}).status == 202
    product.services.jobs.run_open(product.services.work, lambda: False)

    def seen(caller: tuple[str, str, Role], entity: str) -> set[str]:
        found, cursor = set(), ""
        while (answer := ask(product, caller, "GET", f"/v1/events?entity={entity}{cursor}")).status == 200:
            found |= {event["request_id"] for event in answer.json()["items"]}
            if answer.json()["next_cursor"] is None:
                return found
            cursor = f"&cursor={answer.json()['next_cursor']}"
        return set()

    own = {f"{CANARY}-app", f"{CANARY}-org"}
    assert seen(AS_APP, APP) == seen(AS_APP, owned.entity) == seen(AS_OWNER, APP) == own
    assert seen(AS_OTHER_APP, OTHER_APP) == {"of-other"}
    assert seen(AS_OWNER, OWNER) == {*own, "of-other", "of-org"}
    for caller in (AS_APP, AS_OTHER_APP, AS_STRANGER):
        assert seen(caller, OWNER) == set()
    assert seen(AS_OTHER_APP, APP) == seen(AS_STRANGER, APP) == seen(AS_STRANGER, STRANGER) == set()


@pytest.mark.parametrize("entity", [OWNER, APP])
def test_of_the_org_and_of_another_app_nothing_is_answered(entity: str) -> None:
    product, _ = furnished()
    before = product.items_of(OWNER)
    override = {"entity": entity, "label": LABEL, "reason": "mine now"}
    for method, target, body in (
        ("GET", f"/v1/aggregates?entity={entity}", None),
        ("GET", f"/v1/aggregates?entity={entity}&from=2027-01-01&to=2027-01-15", None),
        ("GET", f"/v1/events?entity={entity}&day=2027-01-15", None),
        ("GET", f"/v1/selection?entity={entity}", None),
        ("PUT", "/v1/selection/override", override),
        ("DELETE", f"/v1/selection/override?entity={entity}", None),
        ("POST", "/v1/usage", usage_of(entity, LABEL)),
    ):
        refused = ask(product, AS_OTHER_APP, method, target, body)
        assert (refused.status, refused.json()["type"]) == (404, "urn:sluice:problem:not-found"), target
    assert product.items_of(OWNER) == before


def test_what_holds_for_all_apps_is_not_an_apps_to_change() -> None:
    product, _ = furnished()
    profile = {"inference_profile_arn": PROFILE_ARN}
    assert ask(product, AS_OWNER, "PUT", "/v1/inference-profiles/shared", profile).status == 201
    defined(product, AS_OWNER)
    before = product.items_of(OWNER)
    for method, target, body in (
        ("PUT", "/v1/inference-profiles/shared", profile),
        ("DELETE", "/v1/inference-profiles/shared", None),
        ("PUT", "/v1/labels/plain", FALLBACK),
        ("DELETE", "/v1/labels/plain", None),
        ("PUT", "/v1/prices?model_id=m", {"standard": {"input_usd_micros_per_1m": 0}}),
        ("DELETE", "/v1/prices?model_id=vendor.large-v1&from_day=2027-01-15", None),
        ("POST", "/v1/aggregates/rollup", {"entity": APP}),
    ):
        assert ask(product, AS_APP, method, target, body).status == 403, target
    assert product.items_of(OWNER) == before
    assert ask(product, AS_APP, "GET", "/v1/inference-profiles/shared").status == 200


def test_labels_prices_and_profiles_of_one_tenant_mean_nothing_to_another() -> None:
    product, _ = furnished()
    defined(product, AS_OWNER)
    quote = {"label": "plain", "input_tokens": 10**6, "output_tokens": 0}
    assert ask(product, AS_OWNER, "POST", "/v1/prices/quote", quote).json()["cost_usd_micros"] == 10**6
    assert ask(product, AS_STRANGER, "POST", "/v1/prices/quote", quote).json()["type"].endswith("unknown-label")
    by_model = {"model_id": "vendor.large-v1", "input_tokens": 10**6, "output_tokens": 0}
    assert ask(product, AS_OWNER, "POST", "/v1/prices/quote", by_model).json()["cost_usd_micros"] == 3_000_000
    assert ask(product, AS_STRANGER, "POST", "/v1/prices/quote", by_model).json()["type"].endswith("price-missing")
    own = {"standard": {"input_usd_micros_per_1m": 1}}
    assert ask(product, AS_STRANGER, "PUT", "/v1/prices?model_id=vendor.large-v1", own).status == 201
    assert ask(product, AS_OWNER, "POST", "/v1/prices/quote", by_model).json()["cost_usd_micros"] == 3_000_000


def test_selection_of_one_app_stays_where_another_is_moved() -> None:
    product, _ = furnished()
    settings = OrgSettings(model_ordering=("a", "b"), quotas_usd_micros={"a": 1, "b": 2})
    product.table.put({"Item": next(i for i in tenant_items(OWNER, OWNER, settings=settings) if i["kind"] == "org")})
    product.wait(60_000)
    for label in ("a", "b"):
        defined(product, AS_OWNER, label)
    override = {"entity": APP, "label": "b", "reason": "because"}
    assert ask(product, AS_APP, "PUT", "/v1/selection/override", override).status in (200, 201)
    assert ask(product, AS_APP, "GET", "/v1/selection").json()["label"] == "b"
    for caller in (AS_OTHER_APP, AS_OWNER):
        shown = ask(product, caller, "GET", "/v1/selection")
        assert (shown.json()["label"], shown.json()["reason"]) == ("a", "normal")
        assert b"because" not in shown.body
