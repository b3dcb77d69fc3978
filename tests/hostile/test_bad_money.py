"""Every kind of bad input about money that the contract names: the answer says what is wrong, nothing is changed."""

from collections.abc import Callable
from typing import Any

import pytest

from sluice.core.limits import AMOUNT_MAX
from sluice.core.pricing import PRICE_MAX_USD_MICROS
from sluice.edge.problems import rfc3339
from tests.hostile.bad import Bad
from tests.hostile.furniture import APP, LONER, ORDERING, PROFILE_ARNS, PROFILED, STRANGER, TEAM, USER
from tests.hostile.gateway import Answer
from tests.hostile.product import NAMESPACE, Product

Refused = Callable[[Bad], Answer]

EVENT: dict[str, Any] = {
    "request_id": "bad-1",
    "entity": USER,
    "label": "premium",
    "input_tokens": 1,
    "output_tokens": 1,
    "status": "ok",
}
QUOTE: dict[str, Any] = {"label": "premium", "input_tokens": 1, "output_tokens": 1}
MODEL_PRICE: dict[str, Any] = {"standard": {"input_usd_micros_per_1m": 1}}
PRICES = "/v1/prices?model_id=some-model"
OVERRIDE = {"entity": USER, "label": "standard", "reason": "because"}
PROFILE = {"inference_profile_arn": PROFILE_ARNS[0]}
JSON = {"content-type": "application/json"}

NO_AMOUNTS: list[Any] = [-1, 0.5, 1.0, "1", None, True, AMOUNT_MAX + 1, 10**400, [], {}]
NO_IDS: list[Any] = ["", "-a", "a b", "a/b", "a#b", "é", "a" * 129, "a\n", "a\x00", 1, [], {}, True]
NO_REGIONS: list[Any] = ["", "US-EAST-1", "us-east", "us-east-1.evil.example", "us-east-1\n", "x" * 65, 1]
NO_DAYS = ["", "2027-1-1", "20270115", "2027-13-01", "2027-02-30", "2027-01-15T00:00:00Z", "today", "-001-01-01"]
NO_TIMES: list[Any] = [
    *("", "yesterday", "2027-01-15", "2027-01-15T08:00:00", "2027-01-15 08:00:00Z", "2027-13-01T00:00:00Z"),
    *("2027-02-30T00:00:00Z", "2027-01-15T24:00:00Z", "2027-01-15T08:00:00+99:99", "1969-12-31T23:59:59Z", 1.8e9, True),
    *("0000-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59", "\u0662027-01-15T08:00:00Z"),
    *("2027-01-15T08:00:00.Z", "2027-01-15T08:00:00,123Z", f"2027-01-15T08:00:00.{'0' * 20}Z"),
]
BAD_OF_BOTH: dict[str, list[Any]] = {
    "input_tokens": NO_AMOUNTS,
    "output_tokens": NO_AMOUNTS,
    "cache_read_tokens": NO_AMOUNTS,
    "cache_write_tokens": NO_AMOUNTS,
    "cache_write_1h_tokens": NO_AMOUNTS,
    "label": NO_IDS,
    "region": NO_REGIONS,
    "pricing": ["", "STANDARD", "flex", 1, None, []],
}


def test_a_quote_that_can_not_be(refused: Refused) -> None:
    for blamed, values in BAD_OF_BOTH.items():
        for value in values:
            refused(Bad("POST", "/v1/prices/quote", 400, "invalid-request", blamed, {**QUOTE, blamed: value}))
    for day in (*NO_DAYS, 20270115, True):
        refused(Bad("POST", "/v1/prices/quote", 400, "invalid-request", "day", {**QUOTE, "day": day}))
    for both in ({**QUOTE, "model_id": "m"}, {"input_tokens": 1, "output_tokens": 1}):
        refused(Bad("POST", "/v1/prices/quote", 400, "invalid-request", "label", both))
    refused(Bad("POST", "/v1/prices/quote", 422, "unknown-label", "label", {**QUOTE, "label": "unheard-of"}))
    unknown = {"model_id": "nobody.knows-it", "input_tokens": 0, "output_tokens": 0}
    refused(Bad("POST", "/v1/prices/quote", 422, "price-missing", None, unknown))


NO_PRICES: list[Any] = [-1, 0.5, "1", True, PRICE_MAX_USD_MICROS + 1, 10**400, []]
BAD_PRICES: dict[str, list[Any]] = {
    "region": NO_REGIONS,
    "from_day": [*NO_DAYS, 1],
    "standard": [None, [], 1, {}, {"cache_read_usd_micros_per_1m": 1}],
    "standard.input_usd_micros_per_1m": [{"input_usd_micros_per_1m": price} for price in NO_PRICES],
    "batch.output_usd_micros_per_1m": [{"output_usd_micros_per_1m": price} for price in NO_PRICES],
    "long_from_tokens": [0, -1, 0.5, "1", AMOUNT_MAX + 1, 200_000],
    "long_standard": [{"input_usd_micros_per_1m": 1}],
    "long_batch": [{"input_usd_micros_per_1m": 1}],
}


def test_a_price_that_can_not_be(refused: Refused) -> None:
    for blamed, values in BAD_PRICES.items():
        for value in values:
            body = {**MODEL_PRICE, blamed.partition(".")[0]: value}
            refused(Bad("PUT", PRICES, 400, "invalid-request", blamed, body))
    refused(Bad("PUT", PRICES, 400, "invalid-request", "standard", {}))
    requests: list[tuple[str, Any]] = [("GET", None), ("PUT", MODEL_PRICE), ("DELETE", None)]
    for method, body in requests:
        for query in (
            "",
            "?model_id=",
            "?model_id=a%20b",
            f"?model_id={'x' * 257}",
            "?model_id=%C3%A9",
            "?model_id=%00",
        ):
            more = "" if method != "DELETE" else f"{'&' if query else '?'}from_day=2027-01-15"
            refused(Bad(method, f"/v1/prices{query}{more}", 400, "invalid-request", "model_id", body))
    for day in ("2027-1-1", "2027-02-30", "", "now"):
        refused(Bad("GET", f"{PRICES}&day={day}", 400, "invalid-request", "day"))
        refused(Bad("DELETE", f"{PRICES}&from_day={day}", 400, "invalid-request", "from_day"))
    refused(Bad("DELETE", PRICES, 400, "invalid-request", "from_day"))
    refused(Bad("DELETE", f"{PRICES}&from_day=2027-01-15", 404, "not-found"))
    refused(Bad("GET", PRICES, 404, "not-found"))
    refused(Bad("GET", f"{PRICES}&region=nowhere", 400, "invalid-request", "region"))


BAD_LABELS: dict[str, list[Any]] = {
    "model_id": ["", "a b", "x" * 257, "é", "a\n", 1, None],
    "tier": ["", "x" * 129, 1],
    "family": ["", "x" * 129, 1],
    "description": ["", "x" * 513, 1],
    "input_price_usd_micros_per_1m": NO_PRICES,
    "output_price_usd_micros_per_1m": NO_PRICES,
}


def test_a_label_that_can_not_be(refused: Refused) -> None:
    for blamed, values in BAD_LABELS.items():
        for value in values:
            body = {"model_id": "m", blamed: value}
            refused(Bad("PUT", "/v1/labels/x", 400, "invalid-request", blamed, body))
    refused(Bad("PUT", "/v1/labels/x", 400, "invalid-request", "model_id", {}))
    for name in ("-a", "a%20b", "a" * 129, "_default_", "%C3%A9"):
        requests: list[tuple[str, Any]] = [("GET", None), ("PUT", {"model_id": "m"}), ("DELETE", None)]
        for method, body in requests:
            refused(Bad(method, f"/v1/labels/{name}", 400, "invalid-request", "label", body))
    for method in ("GET", "DELETE"):
        refused(Bad(method, "/v1/labels/unheard-of", 404, "not-found"))
        refused(Bad(method, "/v1/inference-profiles/unheard-of", 404, "not-found"))


GOOD_ARN = PROFILE_ARNS[0]
BAD_ARNS: list[Any] = [
    *("", "x", "arn", "arn:aws:bedrock", ":::::", GOOD_ARN[4:], f" {GOOD_ARN}", f"{GOOD_ARN} ", f"{GOOD_ARN}\n"),
    GOOD_ARN.replace("arn:", "ARN:"),
    GOOD_ARN.replace("bedrock", "s3"),
    GOOD_ARN.replace("bedrock", "bedrock-runtime"),
    *(GOOD_ARN.replace(":aws:", f":{partition}:") for partition in ("", "AWS", "gcp", "aws-", "aws_cn")),
    *(GOOD_ARN.replace("eu-west-1", region) for region in ("", "EU-WEST-1", "eu-west", "*", "evil.example/eu-west-1")),
    *(GOOD_ARN.replace("123456789012", account) for account in ("", "12345678901", "1234567890123", "a" * 12, "*")),
    GOOD_ARN.replace("application-inference-profile", "foundation-model"),
    GOOD_ARN.replace("application-inference-profile", "Inference-Profile"),
    *(
        GOOD_ARN.replace("/abc", identity)
        for identity in ("", "/", "//abc", "/a/b", "/a b", "/é", f"/{'a' * 65}", ":abc")
    ),
    *("arn:aws:bedrock:eu-west-1::foundation-model/vendor.large-v1", GOOD_ARN * 2, "a" * 3000, 1, None, [], {}),
]


def test_an_inference_profile_that_can_not_be(refused: Refused) -> None:
    for target in (f"/v1/inference-profiles/{PROFILED}", f"/v1/inference-profiles/new?app={APP}"):
        for arn in BAD_ARNS:
            body = {"inference_profile_arn": arn}
            refused(Bad("PUT", target, 400, "invalid-request", "inference_profile_arn", body))
        refused(Bad("PUT", target, 400, "invalid-request", "inference_profile_arn", {}))
        for description in ("", "x" * 513, 1):
            body = {**PROFILE, "description": description}
            refused(Bad("PUT", target, 400, "invalid-request", "description", body))
    for app in (USER, TEAM, NAMESPACE, STRANGER, "nobody"):
        target = f"/v1/inference-profiles/x?app={app}"
        refused(Bad("PUT", target, 404, "not-found", body=PROFILE))
        refused(Bad("GET", target, 404, "not-found"))
        refused(Bad("DELETE", target, 404, "not-found"))
        refused(Bad("GET", f"/v1/inference-profiles?app={app}", 404, "not-found"))


@pytest.mark.parametrize("tag", ['"1-1"', '"', "", 'W/"1800000000000-1"', "1800000000000-1", "* *", "null"])
@pytest.mark.parametrize(
    ("path", "body"), [("/v1/labels/premium", {"model_id": "m"}), (f"/v1/inference-profiles/{PROFILED}", PROFILE)]
)
def test_a_version_that_is_not_the_stored_one(path: str, body: object, tag: str, refused: Refused) -> None:
    for method, sent in (("PUT", body), ("DELETE", None)):
        refused(Bad(method, path, 412, "precondition-failed", "if-match", sent, {"if-match": tag}))


NO_REASONS: list[Any] = ["", "x" * 513, 1, None, []]
BAD_OVERRIDES: list[tuple[dict[str, Any], int, str, str | None]] = [
    *(({"label": label}, 400, "invalid-request", "label") for label in (*NO_IDS, None)),
    *(({"entity": entity}, 400, "invalid-request", "entity") for entity in (*NO_IDS, None)),
    *(({"reason": reason}, 400, "invalid-request", "reason") for reason in NO_REASONS),
    *(({"until": until}, 400, "invalid-request", "until") for until in NO_TIMES),
    ({"until": "2027-01-15T08:00:00Z"}, 400, "invalid-request", "until"),
    ({"until": "9999-12-31T23:59:59Z"}, 400, "invalid-request", "until"),
    # Outside the ordering: not defined, defined by a profile alone, and known to nobody.
    ({"label": "unheard-of"}, 422, "unknown-label", "label"),
    ({"label": PROFILED}, 422, "unknown-label", "label"),
    ({"entity": "nobody-knows-it"}, 404, "not-found", None),
    ({"entity": STRANGER}, 404, "not-found", None),
]


def test_an_override_that_can_not_be(product: Product, refused: Refused) -> None:
    for changed, status, kind, blamed in BAD_OVERRIDES:
        refused(Bad("PUT", "/v1/selection/override", status, kind, blamed, {**OVERRIDE, **changed}))
    for name in OVERRIDE:
        body = {field: value for field, value in OVERRIDE.items() if field != name}
        refused(Bad("PUT", "/v1/selection/override", 400, "invalid-request", name, body))
    past = {**OVERRIDE, "until": rfc3339(product.clock.now_ms)}
    refused(Bad("PUT", "/v1/selection/override", 400, "invalid-request", "until", past))
    for entity in (USER, NAMESPACE, "nobody-knows-it", STRANGER):
        refused(Bad("DELETE", f"/v1/selection/override?entity={entity}", 404, "not-found"))


def test_an_override_of_a_label_that_an_ordering_names_and_nobody_defined(product: Product, refused: Refused) -> None:
    settings = {"model_ordering": [*ORDERING, "undefined"], "quotas": dict.fromkeys((*ORDERING, "undefined"), 1)}
    assert product.call("PUT", f"/v1/orgs/{NAMESPACE}", settings).status == 200
    body = {**OVERRIDE, "label": "undefined"}
    refused(Bad("PUT", "/v1/selection/override", 422, "unknown-label", "label", body))


@pytest.mark.parametrize("path", ["/v1/selection", "/v1/aggregates", "/v1/events"])
def test_an_entity_that_is_not_there_has_used_nothing(path: str, refused: Refused) -> None:
    for entity in ("nobody-knows-it", STRANGER):
        refused(Bad("GET", f"{path}?entity={entity}", 404, "not-found"))
    for entity in ("", "-a", "a%20b", "a%2Fb", "%C3%A9", "a" * 129, "a%00"):
        refused(Bad("GET", f"{path}?entity={entity}", 400, "invalid-request", "entity"))


def test_days_that_can_not_be(refused: Refused) -> None:
    for day in ("", "2027-1-1", "2027-02-30", "today", "2027-01-15T00:00:00Z"):
        for name in ("from", "to"):
            refused(Bad("GET", f"/v1/aggregates?{name}={day}", 400, "invalid-request", name))
        refused(Bad("GET", f"/v1/events?day={day}", 400, "invalid-request", "day"))
    for query in ("from=2027-02-16&to=2027-02-01", "from=9999-12-31", "to=0001-01-01", "from=2020-01-01&to=2027-02-01"):
        refused(Bad("GET", f"/v1/aggregates?{query}", 400, "invalid-request", "from"))
    for day in ("0001-01-01", "2020-01-01", "2028-01-01", "9999-12-31"):
        refused(Bad("GET", f"/v1/events?day={day}", 400, "invalid-request", "day"))
    for limit in ("0", "101", "-1", "1.5", "x", "1" * 5_000):
        refused(Bad("GET", f"/v1/events?limit={limit}", 400, "invalid-request", "limit"))


def test_a_rollup_that_can_not_be(refused: Refused) -> None:
    for entity in (*NO_IDS, None):
        refused(Bad("POST", "/v1/aggregates/rollup", 400, "invalid-request", "entity", {"entity": entity}))
    refused(Bad("POST", "/v1/aggregates/rollup", 400, "invalid-request", "entity", {}))
    for entity in (USER, TEAM, LONER):
        refused(Bad("POST", "/v1/aggregates/rollup", 422, "no-totals", None, {"entity": entity}))
        refused(Bad("GET", f"/v1/aggregates?entity={entity}", 422, "no-totals"))
    for entity in (STRANGER, "nobody-knows-it"):
        refused(Bad("POST", "/v1/aggregates/rollup", 404, "not-found", None, {"entity": entity}))
