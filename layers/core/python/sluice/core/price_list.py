"""What AWS's price list says that a token costs. Nothing is guessed: what is not understood as a whole is left out.

An answer of GetProducts (format aws_v1) is a list of JSON texts, one per product:

    {"product": {"attributes": {"regionCode": "us-east-1", "usagetype": "USE1-NovaPro-input-tokens-batch",
                                "model": "Nova Pro", "inferenceType": "Input tokens",
                                "feature": "Batch Inference", "service_tier": "..."}},
     "terms": {"OnDemand": {"<sku>.<offer>": {"priceDimensions": {"<rate code>": {
        "unit": "1K tokens", "pricePerUnit": {"USD": "0.0004000000"}, "description": "..."}}}}}}

Which tokens, and how they are paid, stands at the end of the usage type, and once more, not always, in the attributes.
There are three ways of writing it:

- AmazonBedrock, the models of Amazon and others, by the thousand: `USE1-NovaPro-cache-read-input-token-count`,
  `USE1-Nova2.0Lite-output-tokens-cross-region-global`, `...-input-tokens-long-context-cross-region-global`.
- AmazonBedrockFoundationModels, what is sold through the Marketplace, by the million. The model is named in
  `servicename`, `Claude Sonnet 4.5 (Amazon Bedrock Edition)`: `USE1-MP:USE1_InputTokenCount_Global_Batch-Units`,
  `USE1-MP:USE1_CacheWrite1hInputTokenCount_LCtx-Units`.
- The same, newer: `USE1-MP:USE1_cache_write_tokens_1h_global_standard-Units`, `..._input_tokens_long_ctx_batch-Units`.

Everything else is no price of a call that is reported here: pictures and sound, capacity that is reserved, customized
models, faster or slower service, the endpoint named mantle.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Decimal
from enum import Enum
from typing import Any, Final, NamedTuple

from sluice.core.pricing import PRICE_MAX_USD_MICROS, Price, Prices, TokenKind

SERVICE_CODES: Final = ("AmazonBedrock", "AmazonBedrockFoundationModels")

MARKETPLACE_SUFFIX: Final = " (Amazon Bedrock Edition)"

_KINDS: Final = {
    "input": TokenKind.INPUT,
    "text-input": TokenKind.INPUT,
    "output": TokenKind.OUTPUT,
    "text-output": TokenKind.OUTPUT,
    "cached-input": TokenKind.CACHE_READ,
    "cache-read": TokenKind.CACHE_READ,
    "cache-read-input": TokenKind.CACHE_READ,
    "cache-write": TokenKind.CACHE_WRITE,
    "cache-write-input": TokenKind.CACHE_WRITE,
    "cache-write1h-input": TokenKind.CACHE_WRITE_1H,
    "cache-write-1h-input": TokenKind.CACHE_WRITE_1H,
    "cache-write-1h": TokenKind.CACHE_WRITE_1H,
}
_CACHE_WRITES: Final = frozenset({TokenKind.CACHE_WRITE, TokenKind.CACHE_WRITE_1H})
_LONG: Final = ("long-context", "long-ctx", "lctx")
_GLOBAL: Final = ("cross-region-global", "global")
_PLAIN: Final = ("cross-region-geo", "geo", "standard")
_WHAT: Final = (
    rf"(?P<kind>{'|'.join(sorted(_KINDS, key=len, reverse=True))})-token(?:s|-count)(?P<hour>-1h)?"
    rf"(?P<more>(?:-(?:{'|'.join((*_LONG, *_GLOBAL, *_PLAIN, 'batch'))}))*)"
)
_OF_MARKETPLACE: Final = re.compile(r"[A-Z0-9]+-MP:[A-Z0-9]+_(?P<what>.+)-Units")
_OF_BEDROCK: Final = re.compile(rf"[A-Z0-9]+-(?P<model>.+?)-{_WHAT}", re.IGNORECASE)
_DIMENSION: Final = re.compile(_WHAT)
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WORD: Final = re.compile(r"[a-z0-9]+")
# Whatever says one of these is paid in a way that no call is reported by.
_OTHERWISE: Final = frozenset(
    {
        "audio",
        "custom",
        "customization",
        "flex",
        "image",
        "latency",
        "mantle",
        "priority",
        "provisioned",
        "reserved",
        "speech",
        "training",
        "video",
    }
)
_THOUSANDS: Final = {"1k tokens": 1_000, "1m tokens": 1}
# A unit that says nothing; then the description does.
_UNITS: Final = "units"
_MILLION: Final = re.compile(r"\bmillion\b.*\btokens?\b", re.IGNORECASE)
# Exact in the 28 digits that a Decimal has, also after it is scaled.
_USD: Final = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,12})?")
_MICROS: Final = 10**6


class Skipped(Enum):
    """Why a product gives no rate."""

    OTHER = "not paid by the token of a call"
    UNREADABLE = "not written as it is known"


class Column(NamedTuple):
    is_batch: bool = False
    is_long: bool = False


@dataclass(frozen=True, slots=True)
class Rate:
    """One price of one product. `model`: as AWS names it. `served_anywhere`: of its global profile."""

    model: str
    region: str
    kind: TokenKind
    column: Column
    served_anywhere: bool
    usd_micros_per_1m: int


class _Use(NamedTuple):
    """What a usage type says. `model`: only where it names one."""

    kind: TokenKind
    column: Column
    served_anywhere: bool
    model: str | None


def read_product(product: str) -> Rate | Skipped:
    """Never raises, whatever the text is."""
    try:
        document = json.loads(product)
    except (ValueError, RecursionError):
        return Skipped.UNREADABLE
    attributes = _inside(document, "product", "attributes")
    use = _use(attributes)
    if use is None:
        return Skipped.OTHER if _text(attributes, "usagetype") else Skipped.UNREADABLE
    model, region = _name(attributes, use), _text(attributes, "regionCode")
    price = _price(_inside(document, "terms", "OnDemand"))
    if not model or not region or price is None:
        return Skipped.UNREADABLE
    # Writing to a cache is free where it is included. Anything else that costs nothing is a mistake, or will be.
    if price > PRICE_MAX_USD_MICROS or (price == 0 and use.kind not in _CACHE_WRITES):
        return Skipped.UNREADABLE
    return Rate(model, region, use.kind, use.column, use.served_anywhere, price)


def believed(listed: Price, known: Price | None) -> Price | None:
    """What the list says of one model in one region, with the length from which its calls are long: that is not in the
    list. `known`: what ships with the product.

    None where the list says less than that: whoever believed it could no longer price calls that can be priced now, or
    would price long calls as short ones.
    """
    long_from_tokens = None if known is None else known.long_from_tokens
    if long_from_tokens is not None:
        price = replace(listed, long_from_tokens=long_from_tokens)
    elif _differs(listed.standard, listed.long_standard) or _differs(listed.batch, listed.long_batch):
        return None
    else:
        price = replace(listed, long_standard={}, long_batch={})
    if not {TokenKind.INPUT, TokenKind.OUTPUT} <= set(price.standard):
        return None
    return price if known is None or _covers(price, known) else None


def _differs(usual: Prices, long: Prices) -> bool:
    return any(usual.get(kind) != price for kind, price in long.items())


def _covers(price: Price, known: Price) -> bool:
    return (
        known.standard.keys() <= price.standard.keys()
        and known.batch.keys() <= price.batch.keys()
        and known.long_standard.keys() <= price.long_standard.keys()
        and known.long_batch.keys() <= price.long_batch.keys()
    )


def _use(attributes: Mapping[str, Any]) -> _Use | None:
    usage_type = _text(attributes, "usagetype")
    sold = _OF_MARKETPLACE.fullmatch(usage_type)
    if sold is not None:
        found = _DIMENSION.fullmatch(_HUMP.sub("-", sold["what"]).replace("_", "-").lower())
        named = None
    else:
        found = _OF_BEDROCK.fullmatch(usage_type)
        named = None if found is None else found["model"]
    if found is None:
        return None
    inference = _words(_text(attributes, "inferenceType"))
    others = _words(*(_text(attributes, name) for name in ("feature", "service_tier", "model")), named or "")
    if (inference | others) & _OTHERWISE:
        return None
    more = found["more"].lower()
    kind = _KINDS[found["kind"].lower()]
    if found["hour"]:
        if kind is not TokenKind.CACHE_WRITE:
            return None
        kind = TokenKind.CACHE_WRITE_1H
    column = Column(
        is_batch="batch" in more or "batch" in inference | others,
        is_long=any(word in more for word in _LONG) or "long" in inference,
    )
    return _Use(kind, column, "global" in more or "global" in inference, named)


def _name(attributes: Mapping[str, Any], use: _Use) -> str:
    service = _text(attributes, "servicename")
    if service.endswith(MARKETPLACE_SUFFIX):
        return service.removesuffix(MARKETPLACE_SUFFIX)
    return _text(attributes, "model") or use.model or ""


def _price(terms: Mapping[str, Any]) -> int | None:
    """Of the only rate of the only offer: several would be a scale by amount, which nobody can apply to one call."""
    offers = list(terms.values())
    rates = list(_inside(offers[0], "priceDimensions").values()) if len(offers) == 1 else []
    if len(rates) != 1:
        return None
    unit, described = _text(rates[0], "unit").lower(), _text(rates[0], "description")
    usd = _USD.fullmatch(_text(_inside(rates[0], "pricePerUnit"), "USD"))
    scale = 1 if unit == _UNITS and _MILLION.search(described) else _THOUSANDS.get(unit)
    if usd is None or scale is None:
        return None
    exact = Decimal(usd[0]) * _MICROS * scale
    return int(exact.to_integral_value(ROUND_CEILING))


def _inside(value: Any, *names: str) -> Mapping[str, Any]:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _text(value: Any, name: str) -> str:
    found = value.get(name) if isinstance(value, dict) else None
    return found.strip() if isinstance(found, str) else ""


def _words(*texts: str) -> set[str]:
    return {word for one in texts for word in _WORD.findall(one.lower())}
