"""Answers of AWS's price list as GetProducts documents them, with the usage types of the real list.

Every product is a JSON text with more in it than anybody needs: what is not read here may be otherwise tomorrow.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sluice.core.errors import Unavailable
from sluice.repository.aws_pricing import PlaceLost, PricePage

PLACES = {"us-east-1": "USE1", "eu-west-1": "EUW1"}


def product(
    attributes: Mapping[str, str], unit: str, usd: str, description: str = "a price", region: str = "us-east-1"
) -> str:
    sku = "2QJ8ZQ5ZQZ5ZQZ5Z"
    rate = {
        "unit": unit,
        "endRange": "Inf",
        "description": description,
        "appliesTo": [],
        "rateCode": f"{sku}.JRTCKXETXF.6YS6EN2CT7",
        "beginRange": "0",
        "pricePerUnit": {"USD": usd},
    }
    term = {
        "priceDimensions": {rate["rateCode"]: rate},
        "sku": sku,
        "effectiveDate": "2026-11-01T00:00:00Z",
        "offerTermCode": "JRTCKXETXF",
        "termAttributes": {},
    }
    return json.dumps(
        {
            "product": {
                "productFamily": "Amazon Bedrock",
                "attributes": {
                    "regionCode": region,
                    "location": "somewhere",
                    "locationType": "AWS Region",
                    "operation": "",
                    **attributes,
                },
                "sku": sku,
            },
            "serviceCode": "AmazonBedrock",
            "terms": {"OnDemand": {f"{sku}.JRTCKXETXF": term}},
            "version": "20261117000000",
            "publicationDate": "2026-11-17T00:00:00Z",
        }
    )


def native(
    name: str, usage: str, usd: str, region: str = "us-east-1", feature: str = "On-demand Inference", **more: str
) -> str:
    """Of AmazonBedrock, by the thousand. `usage`: what follows the place."""
    attributes = {
        "servicecode": "AmazonBedrock",
        "servicename": "Amazon Bedrock",
        "model": name,
        "feature": feature,
        "usagetype": f"{PLACES[region]}-{usage}",
        **more,
    }
    return product(attributes, "1K tokens", usd, region=region)


def sold(model: str, usage: str, usd: str, region: str = "us-east-1", unit: str = "1M tokens", said: str = "") -> str:
    """Of AmazonBedrockFoundationModels, by the million. `usage`: what follows the places."""
    place = PLACES[region]
    attributes = {
        "servicecode": "AmazonBedrockFoundationModels",
        "servicename": f"{model} (Amazon Bedrock Edition)",
        "usagetype": f"{place}-MP:{place}_{usage}-Units",
    }
    return product(attributes, unit, usd, said, region)


def nova_pro(region: str = "us-east-1", input_usd: str = "0.0008000000") -> list[str]:
    return [
        native("Nova Pro", "NovaPro-input-tokens", input_usd, region, inferenceType="Input tokens"),
        native("Nova Pro", "NovaPro-output-tokens", "0.0032000000", region, inferenceType="Output tokens"),
        native(
            "Nova Pro",
            "NovaPro-cache-read-input-token-count",
            "0.0002000000",
            region,
            inferenceType="Prompt cache read input tokens",
        ),
        native(
            "Nova Pro",
            "NovaPro-cache-write-input-token-count",
            "0.0000000000",
            region,
            inferenceType="Prompt cache write input tokens",
        ),
        native("Nova Pro", "NovaPro-input-tokens-batch", "0.0004000000", region, feature="Batch Inference"),
        native("Nova Pro", "NovaPro-output-tokens-batch", "0.0016000000", region, feature="Batch Inference"),
    ]


def sonnet_4_5(region: str = "us-east-1") -> list[str]:
    """Within a geography and served anywhere, with everything that there is."""
    prices = {
        "InputTokenCount": ("3.3000000000", "3.0000000000"),
        "OutputTokenCount": ("16.5000000000", "15.0000000000"),
        "CacheReadInputTokenCount": ("0.3300000000", "0.3000000000"),
        "CacheWriteInputTokenCount": ("4.1250000000", "3.7500000000"),
        "CacheWrite1hInputTokenCount": ("6.6000000000", "6.0000000000"),
        "InputTokenCount_LCtx": ("6.6000000000", "6.0000000000"),
        "OutputTokenCount_LCtx": ("24.7500000000", "22.5000000000"),
        "CacheReadInputTokenCount_LCtx": ("0.6600000000", "0.6000000000"),
        "CacheWriteInputTokenCount_LCtx": ("8.2500000000", "7.5000000000"),
        "CacheWrite1hInputTokenCount_LCtx": ("13.2000000000", "12.0000000000"),
    }
    found = [
        sold("Claude Sonnet 4.5", f"{usage}{scope}", usd, region)
        for usage, both in prices.items()
        for scope, usd in zip(("", "_Global"), both, strict=True)
    ]
    batches = {"InputTokenCount": ("1.65", "1.5"), "OutputTokenCount": ("8.25", "7.5")}
    found += [
        sold("Claude Sonnet 4.5", f"{usage}{scope}_Batch", usd, region)
        for usage, both in batches.items()
        for scope, usd in zip(("", "_Global"), both, strict=True)
    ]
    return found


@dataclass
class FakePriceList:
    """Pages of so many products, by region and service code. Raises what it is told to."""

    products: dict[tuple[str, str], Sequence[str]]
    page_size: int = 7
    errors: list[Exception] = field(default_factory=list)
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    endless: bool = False

    def regions(self) -> list[str]:
        return sorted({region for region, _ in self.products}, reverse=True)

    def page(self, service_code: str, region: str, token: str | None) -> PricePage:
        self.asked.append((service_code, region, token))
        if self.errors:
            raise self.errors.pop(0)
        found = self.products.get((region, service_code), ())
        start = 0 if token is None else int(token)
        end = start + self.page_size
        return PricePage(tuple(found[start:end]), str(end) if end < len(found) or self.endless else None)


LOST = PlaceLost("ExpiredNextTokenException")
OUT_OF_REACH = Unavailable("ThrottlingException")


def changed(text: str, path: Sequence[str], value: Any) -> str:
    """A product of which one thing is otherwise. `value`: None takes it away; `*` is any name."""
    document = json.loads(text)
    inside = document
    for name in path[:-1]:
        inside = inside[next(iter(inside)) if name == "*" else name]
    last = next(iter(inside)) if path[-1] == "*" else path[-1]
    if value is None:
        del inside[last]
    else:
        inside[last] = value
    return json.dumps(document)
