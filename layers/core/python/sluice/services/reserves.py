"""What a call may take at most, in the amounts of a budget, and what would take less. Counts and writes nothing."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from sluice.core.budget import Amounts, Dimension, Slot
from sluice.core.errors import InvalidRequest, ModelsUnavailable, PriceMissing, Remedy, ReserveRequired, UnknownLabel
from sluice.core.pricing import Price, PriceUnknown
from sluice.core.reserves import (
    AmountReserve,
    ModelReserve,
    Reserve,
    asked_dimensions,
    largest_output,
    most_usd_micros,
)
from sluice.services.catalog import Model
from sluice.services.judging import Models, Prices
from sluice.services.lineages import Lineages
from sluice.services.settings import SettingsCache

Fits = Callable[[Amounts], bool]


@dataclass(frozen=True, slots=True)
class Call:
    """What is reserved, by whom and when. `chain`: the entity first. `day`: whose prices hold.

    `hard_slots`: the hard limits of all ledgers that must agree.
    """

    namespace: str
    chain: Sequence[str]
    reserve: Reserve | None
    day: int
    hard_slots: frozenset[Slot]

    @property
    def must_be_priced(self) -> bool:
        return Dimension.COST in asked_dimensions(self.hard_slots)


class Reserves:
    """Safe to share between threads."""

    def __init__(self, settings: SettingsCache, lineages: Lineages, models: Models, prices: Prices) -> None:
        self._settings = settings
        self._lineages = lineages
        self._models = models
        self._prices = prices

    def amounts(self, call: Call) -> Amounts:
        """Raises ReserveRequired, UnknownLabel, PriceMissing."""
        asked = asked_dimensions(call.hard_slots)
        reserve = call.reserve
        if reserve is None:
            if asked:
                raise ReserveRequired([dimension.value for dimension in asked])
            return Amounts(executions=1)
        if isinstance(reserve, AmountReserve):
            if reserve.tokens is None and Dimension.TOKENS in asked:
                raise ReserveRequired([Dimension.TOKENS.value])
            return Amounts(reserve.cost_usd_micros, reserve.tokens or 0, 1)
        return self._priced(call, reserve, self._model(call, reserve))

    def remedies(self, call: Call, fits: Fits) -> list[Remedy]:
        """What would fit now instead: a shorter answer, and the next label of the ordering."""
        reserve = call.reserve
        if not isinstance(reserve, ModelReserve):
            return []
        model = self._model(call, reserve)

        def shorter_fits(output_tokens: int) -> bool:
            return fits(self._priced(call, replace(reserve, max_output_tokens=output_tokens), model))

        output = largest_output(reserve.max_output_tokens, shorter_fits)
        found = [Remedy("max_output_tokens", output)] if output else []
        label = next((one for one in self._labels_after(call, reserve) if self._fits_under(call, one, fits)), None)
        return found if label is None else [*found, Remedy("label", label)]

    def _priced(self, call: Call, reserve: ModelReserve, model: Model) -> Amounts:
        price = self._prices.find(call.namespace, model.model_id, model.region, call.day, model.definition)
        cost = 0
        try:
            cost = _most(price, reserve, model)
        except PriceMissing:
            # Nobody asks what it costs where only tokens or executions are limited.
            if call.must_be_priced:
                raise
        return Amounts(cost, reserve.tokens, 1)

    def _model(self, call: Call, reserve: ModelReserve) -> Model:
        """As a call that is reported."""
        app = self._app(call)
        if reserve.model_id is None:
            if reserve.label is None:
                raise AssertionError("a checked reserve names one of the two")
            with _about_reserve():
                return self._models.resolve(call.namespace, app, reserve.label, reserve.region)
        try:
            label = self._models.label_of(call.namespace, app, reserve.model_id)
        except ModelsUnavailable:
            # The label matters only for a price that nobody else knows.
            known = self._prices.find(call.namespace, reserve.model_id, reserve.region, call.day, None)
            if known is None and call.must_be_priced:
                raise
            label = None
        definition = None if label is None else self._models.definition(call.namespace, label)
        return Model(label, reserve.model_id, reserve.region, definition)

    def _app(self, call: Call) -> str | None:
        """Of the entity or, where nobody knows it yet, of the one that it will be below."""
        lineages = (self._lineages.find(call.namespace, entity) for entity in call.chain)
        return next((lineage.app for lineage in lineages if lineage is not None), None)

    def _labels_after(self, call: Call, reserve: ModelReserve) -> Sequence[str]:
        """All of them, for a model that is none of the ordering."""
        app = self._app(call)
        ordering = self._settings.tenant(call.namespace, app).effective.model_ordering
        label = reserve.label
        if reserve.model_id is not None:
            try:
                label = self._models.label_of(call.namespace, app, reserve.model_id)
            except ModelsUnavailable:
                # A refusal stays one; any label that fits may help.
                label = None
        return ordering[ordering.index(label) + 1 :] if label in ordering else ordering

    def _fits_under(self, call: Call, label: str, fits: Fits) -> bool:
        """One that can not be resolved or priced would not help."""
        if not isinstance(call.reserve, ModelReserve):
            return False
        reserve = replace(call.reserve, label=label, model_id=None)
        try:
            return fits(self._priced(call, reserve, self._model(call, reserve)))
        except (InvalidRequest, ModelsUnavailable, PriceMissing, UnknownLabel):
            return False


@contextmanager
def _about_reserve() -> Iterator[None]:
    """What is wrong with a label or region names the way to it."""
    try:
        yield
    except (InvalidRequest, UnknownLabel) as error:
        raise type(error)(f"reserve.{error.field}", error.detail) from error


def _most(price: Price | None, reserve: ModelReserve, model: Model) -> int:
    if price is None:
        raise PriceMissing(f"the model {model.model_id}")
    try:
        return most_usd_micros(price, reserve.input_tokens, reserve.max_output_tokens)
    except PriceUnknown as unknown:
        raise PriceMissing(f"the {', '.join(unknown.kinds)} tokens of the model {model.model_id}") from None
