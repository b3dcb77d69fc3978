"""The book itself: one set of prices per model id, with what differs by region, from all entries of the table.

Where one provider has several entries for one id, the id does not say which of them a call goes to: the dearest price
of each kind holds, so that nothing is counted too low. Where several providers sell one id, the first has it.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tools.price_book.entries import LeftOut, Provider, Subject, mode_of, provider_of, subject_of
from tools.price_book.rates import Rates, dearest, is_carried, read

FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Model:
    provider: Provider
    rates: Rates
    regions: Mapping[str, Rates]


@dataclass(frozen=True, slots=True)
class Clash:
    """Entries of one provider that name different prices. `taken`: the dearest; the others by their keys."""

    model_id: str
    region: str | None
    price: str
    taken: int
    named: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Resold:
    """Another provider's entry for an id, which is not in the book. `differs`: it names other prices."""

    model_id: str
    key: str
    provider: Provider
    kept: Provider
    differs: bool


@dataclass
class Findings:
    """What a person should know about how the book came about. By the reason or field, the keys of the entries."""

    foreign: int = 0
    left_out: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    rounded: list[tuple[str, str]] = field(default_factory=list)
    zeros: list[tuple[str, str]] = field(default_factory=list)
    not_carried: Counter[str] = field(default_factory=Counter)
    clashes: list[Clash] = field(default_factory=list)
    resold: list[Resold] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Offer:
    key: str
    subject: Subject
    rates: Rates


def build(table: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, Model], Findings]:
    """Models by their ids, in order."""
    findings = Findings()
    offers: dict[str, list[_Offer]] = defaultdict(list)
    for key, entry in sorted(table.items()):
        provider = provider_of(entry)
        if provider is None:
            findings.foreign += 1
            continue
        try:
            offer = _offer(key, entry, provider, findings)
        except LeftOut as left_out:
            findings.left_out[left_out.reason].append(key)
        else:
            offers[offer.subject.model_id].append(offer)
    models = {}
    for model_id, its_offers in sorted(offers.items()):
        model = _model(model_id, its_offers, findings)
        if model is not None:
            models[model_id] = model
    return models, findings


def text(version: str, sources: Mapping[str, Mapping[str, str]], models: Mapping[str, Model]) -> str:
    """As it is shipped: a line per model, so that a change of a price is a change of a line."""
    lines = [f"{_json(model_id)}:{_json(_content(model))}" for model_id, model in models.items()]
    facts = [f"{_json(name)}:{_json(source)}" for name, source in sources.items()]
    return (
        f'{{"format":{FORMAT},"version":{_json(version)},"sources":{{\n'
        + ",\n".join(facts)
        + '\n},"models":{\n'
        + ",\n".join(lines)
        + "\n}}\n"
    )


def _offer(key: str, entry: Mapping[str, Any], provider: Provider, findings: Findings) -> _Offer:
    mode = mode_of(entry)
    subject = subject_of(key, provider)
    found = read(entry, mode)
    findings.rounded += [(key, name) for name in found.rounded]
    findings.zeros += [(key, name) for name in found.zeros]
    findings.not_carried.update(name for name in entry if "cost" in name and not is_carried(name))
    return _Offer(key, subject, found.rates)


def _model(model_id: str, offers: Sequence[_Offer], findings: Findings) -> Model | None:
    kept = min((offer.subject.provider for offer in offers), key=list(Provider).index)
    own = [offer for offer in offers if offer.subject.provider is kept]
    by_region: dict[str | None, list[_Offer]] = defaultdict(list)
    for offer in own:
        by_region[offer.subject.region].append(offer)
    if None not in by_region:
        findings.left_out["a price of some regions, but none of the model"] += [offer.key for offer in own]
        return None
    rates = {region: dearest(offer.rates for offer in same) for region, same in by_region.items()}
    for region, same in sorted(by_region.items(), key=str):
        findings.clashes += _clashes(model_id, region, same)
    for offer in offers:
        if offer.subject.provider is not kept:
            differs = offer.rates != rates[None]
            findings.resold.append(Resold(model_id, offer.key, offer.subject.provider, kept, differs))
    regions = {region: rates[region] for region in sorted(filter(None, rates))}
    return Model(kept, rates[None], regions)


def _clashes(model_id: str, region: str | None, offers: Sequence[_Offer]) -> list[Clash]:
    """Price by price. A kind that only some of them name is no clash."""
    named: dict[str, dict[str, int]] = defaultdict(dict)
    for offer in offers:
        for column, prices in offer.rates.columns():
            for kind, price in prices.items():
                named[f"{column} {kind}"][offer.key] = price
    return [
        Clash(model_id, region, price, max(by_key.values()), by_key)
        for price, by_key in named.items()
        if len(set(by_key.values())) > 1
    ]


def _content(model: Model) -> dict[str, Any]:
    content = {"provider": model.provider, **_columns(model.rates)}
    if model.regions:
        content["regions"] = {region: _columns(rates) for region, rates in model.regions.items()}
    return content


def _columns(rates: Rates) -> dict[str, Any]:
    content = {
        "standard": rates.standard,
        "batch": rates.batch,
        "long_from_tokens": rates.long_from_tokens,
        "long_standard": rates.long_standard,
        "long_batch": rates.long_batch,
    }
    return {name: value for name, value in content.items() if value}


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
