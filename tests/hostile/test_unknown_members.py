"""Members that nobody knows: every body is refused for one, wherever in it that stands."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.hostile.bad import Bad
from tests.hostile.document import closed_document, place_of
from tests.hostile.furniture import APP, PROFILE_ARNS, USER
from tests.hostile.gateway import Answer
from tests.hostile.product import NAMESPACE
from tests.hostile.test_bad_input import ACQUIRE, ENTITY, LEVELS, LIMIT, OWN_APP, OWN_ORG, VERBS
from tests.hostile.test_bad_money import EVENT, MODEL_PRICE, QUOTE

UNKNOWN_MEMBERS: list[tuple[str, str, dict[str, Any], str]] = [
    ("POST", "/v1/acquire", {**ACQUIRE, "surprise": 1}, "surprise"),
    ("POST", "/v1/acquire", {**ACQUIRE, "limits": {"rpm": {**LIMIT, "surprise": 1}}}, "limits.rpm.surprise"),
    ("POST", "/v1/explain", {**ACQUIRE, "surprise": 1}, "surprise"),
    *(
        ("POST", f"/v1/leases/{verb}", {"lease": "x", **more, "surprise": 1}, "surprise")
        for verb, more in VERBS.items()
    ),
    ("POST", "/v1/leases/settle", {"lease": "x", "actual": {}, "usage": {**EVENT, "surprise": 1}}, "usage.surprise"),
    ("POST", "/v1/migrations", {"org": NAMESPACE, "surprise": 1}, "surprise"),
    ("POST", "/v1/auth/token", {"client_id": "x", "client_secret": "y", "surprise": 1}, "surprise"),
    ("POST", "/v1/auth/refresh", {"refresh_token": "x", "surprise": 1}, "surprise"),
    ("POST", "/v1/auth/revoke", {"token": "x", "surprise": 1}, "surprise"),
    ("PUT", OWN_ORG, {"surprise": 1}, "surprise"),
    ("PUT", OWN_APP, {"surprise": 1}, "surprise"),
    # Of an org only.
    *(
        ("PUT", OWN_APP, {name: None}, name)
        for name in ("timezone", "quota_scope", "counter_shards", "accept_unpriced")
    ),
    ("POST", f"{OWN_ORG}/credentials/rotate", {"surprise": 1}, "surprise"),
    ("POST", f"{OWN_APP}/credentials/rotate", {"surprise": 1}, "surprise"),
    ("PUT", ENTITY.format(USER), {"surprise": 1}, "surprise"),
    *(("PUT", path, {"limits": {"rpm": LIMIT}, "surprise": 1}, "surprise") for path in LEVELS),
    *(("PUT", path, {"limits": {"rpm": {**LIMIT, "surprise": 1}}}, "limits.rpm.surprise") for path in LEVELS),
    ("PUT", LEVELS[1], {"limits": {"rpm": LIMIT}, "on_unavailable": "allow"}, "on_unavailable"),
    ("POST", "/v1/usage", {**EVENT, "surprise": 1}, "surprise"),
    ("POST", "/v1/usage", {**EVENT, "cost_usd_micros": 0}, "cost_usd_micros"),
    ("POST", "/v1/usage/batch", {"events": [EVENT], "surprise": 1}, "surprise"),
    ("POST", "/v1/prices/quote", {**QUOTE, "surprise": 1}, "surprise"),
    ("PUT", "/v1/prices", {**MODEL_PRICE, "surprise": 1}, "surprise"),
    ("PUT", "/v1/prices", {"standard": {**MODEL_PRICE["standard"], "surprise": 1}}, "standard.surprise"),
    ("PUT", "/v1/labels/x", {"model_id": "m", "surprise": 1}, "surprise"),
    ("PUT", "/v1/inference-profiles/x", {"inference_profile_arn": PROFILE_ARNS[0], "surprise": 1}, "surprise"),
    ("PUT", "/v1/selection/override", {"entity": USER, "label": "x", "reason": "r", "surprise": 1}, "surprise"),
    ("POST", "/v1/aggregates/rollup", {"entity": APP, "surprise": 1}, "surprise"),
    ("PUT", "/v1/budgets/_default_", {"day_tokens": 1, "surprise": 1}, "surprise"),
    ("PUT", "/v1/budgets/_default_", {"day_tokens": 1, "inherit": True}, "inherit"),
    ("PUT", f"/v1/budgets/{USER}", {"day_tokens": 1, "surprise": 1}, "surprise"),
    ("POST", "/v1/acquire", {**ACQUIRE, "reserve": {"cost_usd_micros": 1, "surprise": 1}}, "reserve.surprise"),
]


@pytest.mark.parametrize(("method", "path", "body", "blamed"), UNKNOWN_MEMBERS)
def test_a_member_that_nobody_knows(
    method: str, path: str, body: dict[str, Any], blamed: str, refused: Callable[[Bad], Answer]
) -> None:
    target = f"{path}?model_id=m" if path == "/v1/prices" else path
    refused(Bad(method, target, 400, "invalid-request", blamed, body, {"idempotency-key": "k"}))


def test_members_that_nobody_knows_are_looked_for_everywhere() -> None:
    with_body = {
        (method.upper(), path)
        for path, operations in closed_document()["paths"].items()
        for method, operation in operations.items()
        if "requestBody" in operation
    }
    tested = {(method, place.template) for method, path, *_ in UNKNOWN_MEMBERS if (place := place_of(path))}
    assert tested == with_body
