"""Which label an app, or the org itself, should use now, by what was spent of the quotas of its local day.

One read of the totals and of where selection stands. It may be a little old: whoever moves selection on does so on the
condition that it stands where it was seen, and looks again if it does not. So it never goes back, whatever was read.

A move is kept for the whole day, so none is made by what is only cached: before it is written, settings and labels are
read anew, and whoever then chooses otherwise does not move.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sluice.core.errors import (
    AllQuotasExceeded,
    Contended,
    InvalidRequest,
    ModelsUnavailable,
    NotFound,
    SpentLabel,
    Unavailable,
    UnknownLabel,
)
from sluice.core.period import LocalDay
from sluice.core.pricing import Price
from sluice.core.quotas import Mode
from sluice.core.selection import Choice, Reason, Spend, Stand, check_again_in_s, choose
from sluice.core.signals import Signal
from sluice.repository import money_keys
from sluice.repository.keys import key_of
from sluice.repository.sticky import UNMOVED, StickyState, decode_sticky, move
from sluice.repository.store import Applied, Store
from sluice.repository.totals import DailyTotal, decode_total
from sluice.services.catalog import Catalog
from sluice.services.effects import Effects
from sluice.services.grounds import Ground, Grounds
from sluice.services.price_book import PriceBook

_MOVE_ROUNDS: Final = 4


@dataclass(frozen=True, slots=True)
class LabelToday:
    """`is_defined`: else it is passed over. `as_of_ms`: when it was summed up; None where nothing was used yet."""

    spend: Spend
    mode: Mode
    is_defined: bool
    as_of_ms: int | None


@dataclass(frozen=True, slots=True)
class Selected:
    """`entity`: the app, or the org, whose selection it is. `sticky`: where it stands, as far as that is kept.

    `model_id`, `price`: None where it takes a region to know, or where nobody knows.
    """

    entity: str
    day: LocalDay
    label: str
    model_id: str | None
    price: Price | None
    reason: Reason
    previous_label: str | None
    mode: Mode
    sticky: StickyState
    labels: tuple[LabelToday, ...]
    check_again_in_s: int
    as_of_ms: int | None


@dataclass(slots=True)
class _View:
    """What a choice goes by. `is_current`: the ground was read anew, and not before what selection stands on was known.

    `overridable`: else an override is not looked at.
    """

    ground: Ground
    totals: Mapping[str, DailyTotal]
    state: StickyState
    overridable: bool
    is_current: bool = False

    def choice(self, now_ms: int) -> Choice | None:
        spends, state = self.spends(), self.state
        stand = state.stand(now_ms) if self.overridable else Stand(state.active_label, state.previous_label)
        usable = [spends[label] for label in self.ground.usable]
        return choose(usable, stand, sticky_enabled=self.ground.sticky_enabled)

    def knows_the_stand(self) -> bool:
        return self.state.active_label is None or self.state.active_label in self.ground.usable

    def spends(self) -> dict[str, Spend]:
        """Of the labels that have a quota, in their order."""
        quotas = self.ground.settings.quotas_usd_micros
        return {label: Spend(label, self._spent_usd_micros(label), quotas[label]) for label in self.ground.labels}

    def as_of_ms(self, label: str) -> int | None:
        return self.totals[label].as_of_ms if label in self.totals else None

    def _spent_usd_micros(self, label: str) -> int:
        return self.totals[label].counters.cost_usd_micros if label in self.totals else 0


class Selection:
    def __init__(self, store: Store, grounds: Grounds, catalog: Catalog, prices: PriceBook, effects: Effects) -> None:
        self._store = store
        self._grounds = grounds
        self._catalog = catalog
        self._prices = prices
        self._effects = effects

    def select_for(
        self, namespace: str, entity: str, region: str | None = None, *, within: str | None = None
    ) -> Selected:
        """For any entity: by the nearest app above it, or else by the org. `within`: whose may be asked for."""
        return self.select(namespace, self._grounds.app_of(namespace, entity, within), region)

    def select(self, namespace: str, app: str | None, region: str | None = None) -> Selected:
        """`app`: None for the org itself. `region`: where the call will be made, for models that differ by region.

        Raises AllQuotasExceeded, and UnknownLabel where the ordering names no label that could ever be used.
        """
        now_ms = self._effects.clock_ms()
        ground = self._grounds.today(namespace, app, now_ms)
        if not ground.usable:
            ground = self._grounds.anew(ground)
        if not ground.usable:
            raise _none_usable()
        view = self._view(ground, overridable=True, consistent=False)
        try:
            choice = self._settle(view, now_ms)
        except (Contended, Unavailable):
            # What is right now is known. To keep it is left to whoever asks next.
            choice = view.choice(now_ms)
        ground, spends = view.ground, view.spends()
        if choice is None:
            usable = [spends[label] for label in ground.usable]
            raise _all_spent(usable, ground.day, now_ms) if usable else _none_usable()
        model_id, price = self._model(ground, choice.label, region)
        chosen, settings = spends[choice.label], ground.settings
        mode = chosen.mode(settings.tight_mode_threshold_pct)
        return Selected(
            entity=ground.name.entity,
            day=ground.day,
            label=choice.label,
            model_id=model_id,
            price=price,
            reason=choice.reason,
            previous_label=choice.previous_label,
            mode=mode,
            sticky=_kept(view.state, ground, now_ms),
            labels=tuple(
                LabelToday(
                    spend=spend,
                    mode=spend.mode(settings.tight_mode_threshold_pct),
                    is_defined=label in ground.usable,
                    as_of_ms=view.as_of_ms(label),
                )
                for label, spend in spends.items()
            ),
            check_again_in_s=check_again_in_s(
                chosen,
                mode,
                settings.refresh_interval_normal_secs,
                settings.refresh_interval_tight_secs,
                now_ms - ground.day.starts_ms,
            ),
            as_of_ms=view.as_of_ms(choice.label),
        )

    def advance(self, namespace: str, entity: str, day: LocalDay, now_ms: int) -> bool:
        """Moves the selection of an app or the org on, if what it stands on is spent, whether or not anybody asks.

        For whoever has just written a total of that day. May be repeated; an override stays as it is. False where it
        could not move and later might: others were faster, or a label of the ordering is not defined yet.
        """
        if now_ms >= day.ends_ms:
            return True
        try:
            return self._advance(self._grounds.on(namespace, entity, day), now_ms)
        except NotFound:
            # The org was removed meanwhile.
            return True

    def _advance(self, ground: Ground | None, now_ms: int) -> bool:
        if ground is None or not ground.sticky_enabled:
            return True
        if len(ground.usable) < 2:
            return ground.usable == ground.labels
        view = self._view(ground, overridable=False, consistent=True)
        view.is_current = view.knows_the_stand()
        choice = self._settle(view, now_ms)
        return view.ground.usable == view.ground.labels if choice is None else not choice.moves

    def _view(self, ground: Ground, *, overridable: bool, consistent: bool) -> _View:
        """In one call."""
        namespace, _, day = ground.name
        sticky = money_keys.sticky(namespace, ground.name.entity, day.name)
        totals = [money_keys.total(namespace, ground.totals_of, day.name, label) for label in ground.labels]
        items = {key_of(item): item for item in self._store.batch_get([sticky, *totals], consistent=consistent)}
        state = items.pop(sticky, None)
        found = [decode_total(item) for item in items.values()]
        return _View(
            ground=ground,
            totals={total.name.label: total for total in found},
            state=UNMOVED if state is None else decode_sticky(state),
            overridable=overridable,
        )

    def _settle(self, view: _View, now_ms: int) -> Choice | None:
        """The choice, once it is kept; `moves` says that it is not. The view is then as selection was found last.

        Whoever was overtaken chooses from where selection stands.
        """
        for _ in range(_MOVE_ROUNDS):
            choice = view.choice(now_ms)
            if choice is not None and choice.moves and not view.is_current:
                self._look_anew(view)
                choice = view.choice(now_ms)
            if choice is None or not choice.moves:
                return choice
            request = move(view.ground.name, choice, view.state.active_label, now_ms)
            outcome = self._store.update(request, repeatable=True)
            view.state = UNMOVED if outcome.item is None else decode_sticky(outcome.item)
            if isinstance(outcome, Applied) or (outcome.repeated and _is_made_by(choice, view.state, now_ms)):
                self._effects.meter.count(Signal.STICKY_ADVANCES)
                return replace(choice, moves=False)
            view.is_current = view.knows_the_stand()
        # Others move it faster than we look. What is right now is known; to keep it is left to them.
        return view.choice(now_ms)

    def _look_anew(self, view: _View) -> None:
        """At settings and labels; and at totals where there are others to go by. The stand is held against the move."""
        before, ground = view.ground, self._grounds.anew(view.ground, view.state.active_label)
        if ground.totals_of != before.totals_of or not {*ground.labels} <= {*before.labels}:
            view.totals = self._view(ground, overridable=view.overridable, consistent=True).totals
        view.ground, view.is_current = ground, True

    def _model(self, ground: Ground, label: str, region: str | None) -> tuple[str | None, Price | None]:
        """The model that the label stands for, and its price. Where that can not be told, what its definition says."""
        namespace = ground.name.namespace
        try:
            model = self._catalog.resolve(namespace, ground.app, label, region)
        except InvalidRequest:
            # An inference profile takes a region to know, and that is no reason not to select.
            if region is not None:
                raise
        except (UnknownLabel, ModelsUnavailable):
            # AWS does not know the profile, or does not answer.
            pass
        else:
            price = self._prices.find(namespace, model.model_id, model.region, ground.day.number, model.definition)
            return model.model_id, price
        # Its price would be one of another model.
        definition = self._catalog.definition(namespace, label)
        return (None if definition is None else definition.model_id), None


def _is_made_by(choice: Choice, state: StickyState, now_ms: int) -> bool:
    """Whether it is this very move that is found, sent before its answer was lost."""
    return (state.active_label, state.moved_at_ms) == (choice.label, now_ms)


def _kept(state: StickyState, ground: Ground, now_ms: int) -> StickyState:
    """What selection goes by: not a label that it passes over by now, nor an override that is over."""
    override = None if state.override is None or not state.override.holds(now_ms) else state.override.on(ground.day)
    if ground.sticky_enabled and state.active_label in ground.usable:
        return replace(state, override=override)
    return StickyState(override=override)


def _none_usable() -> UnknownLabel:
    return UnknownLabel("model_ordering", "names no label that is defined and has a quota")


def _all_spent(usable: Sequence[Spend], day: LocalDay, now_ms: int) -> AllQuotasExceeded:
    spent = [SpentLabel(one.label, one.spent_usd_micros, one.quota_usd_micros) for one in usable if one.is_spent]
    return AllQuotasExceeded(day.ends_ms, day.ends_ms - now_ms, spent)
