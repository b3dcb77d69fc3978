"""Ledgers: the counters of an entity's budget in one item.

| attribute | |
|---|---|
| `day`, `month` | the periods that the counters belong to |
| `{day,month}_{cost,tokens,executions}_used`, `{cost,tokens,executions}_held` | `used` contains `held` |
| `{day,month}_errors` | finished calls that were not ok |
| `{day,month}_{cost,tokens,executions}_limit`, `enforcement`, `alert_percents` | what holds, with what is inherited |
| `own_...`, `inherit`, `has_own` | what was asked for the entity itself, and whether anything was |
| `ov` | counts the changes of what was asked |
| `dv` | the version of the org's defaults that the limits come from; 0: there were none |
| `lv` | counts the changes of what holds |
| `epoch` | counts the refreshes; an event tells by it whether a refresh has to add it up |
| `first_epoch` | where that began: no other ledger of this entity has had any of these |
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sluice.core.budget import (
    DEFAULTS,
    SLOTS,
    Amounts,
    Dimension,
    Enforcement,
    OwnBudget,
    Periods,
    Slot,
    Span,
    Standing,
    Terms,
    Used,
    empty_standing,
)
from sluice.repository import budget_keys
from sluice.repository.audit import Image
from sluice.repository.shapes import UnknownShape, check_kind, optional_text, optional_whole, text, whole
from sluice.repository.wire import Item, Value

LEDGER: Final = "ledger"
NO_DEFAULTS: Final = 0
FIRST_VERSION: Final = 1
"""Of the limits of a new ledger."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """`entity`: or DEFAULTS for the org's defaults, which count nothing."""

    namespace: str
    entity: str
    standing: Standing
    own: OwnBudget
    has_own: bool
    """Whether somebody asked for a budget of this entity; else it counts by the defaults alone."""
    terms: Terms
    defaults_version: int
    limits_version: int
    own_version: int
    """0: nobody has ever asked for one."""
    first_epoch: int
    epoch: int
    refresh_id: str | None
    last_execution_at_ms: int | None
    last_execution_status: str | None
    version: int
    created_at_ms: int
    updated_at_ms: int

    @property
    def is_defaults(self) -> bool:
        return self.entity == DEFAULTS


def new_ledger(
    namespace: str, entity: str, periods: Periods, terms: Terms, defaults_version: int, now_ms: int, first_epoch: int
) -> Ledger:
    """Of an entity that has no budget of its own yet. `first_epoch`: of none that it had before: events stay."""
    return Ledger(
        namespace=namespace,
        entity=entity,
        standing=empty_standing(periods),
        own=OwnBudget(),
        has_own=False,
        terms=terms,
        defaults_version=defaults_version,
        limits_version=FIRST_VERSION,
        own_version=0,
        first_epoch=first_epoch,
        epoch=first_epoch,
        refresh_id=None,
        last_execution_at_ms=None,
        last_execution_status=None,
        version=1,
        created_at_ms=now_ms,
        updated_at_ms=now_ms,
    )


def encode_ledger(ledger: Ledger) -> Item:
    standing = ledger.standing
    item: Item = {
        **budget_keys.ledger(ledger.namespace, ledger.entity).attributes,
        **budget_keys.ledger_indexes(ledger.namespace, ledger.entity),
        "kind": LEDGER,
        "ns": ledger.namespace,
        "entity_id": ledger.entity,
        "day": standing.periods.day,
        "month": standing.periods.month,
        **{used_attribute(slot): standing.of(slot.span).used.of(slot.dimension) for slot in SLOTS},
        **{held_attribute(dimension): standing.held.of(dimension) for dimension in Dimension},
        **{errors_attribute(span): standing.of(span).errors for span in Span},
        **agreed_attributes(ledger),
        "first_epoch": ledger.first_epoch,
        "epoch": ledger.epoch,
        "v": ledger.version,
        "created_at": ledger.created_at_ms,
        "updated_at": ledger.updated_at_ms,
    }
    optional: dict[str, Value] = {
        "refresh_id": ledger.refresh_id,
        "last_execution_at": ledger.last_execution_at_ms,
        "last_execution_status": ledger.last_execution_status,
    }
    return item | {name: value for name, value in optional.items() if value is not None}


def decode_ledger(item: Mapping[str, Value]) -> Ledger:
    check_kind(item, LEDGER)
    spans = {
        span: Used(
            Amounts(*(whole(item, used_attribute(Slot(span, dimension))) for dimension in Dimension)),
            whole(item, errors_attribute(span)),
        )
        for span in Span
    }
    held = Amounts(*(whole(item, held_attribute(dimension)) for dimension in Dimension))
    periods = Periods(text(item, "day"), text(item, "month"))
    return Ledger(
        namespace=text(item, "ns"),
        entity=text(item, "entity_id"),
        standing=Standing(periods, spans[Span.DAY], spans[Span.MONTH], held),
        own=OwnBudget(
            limits=_limits(item, "own_"),
            enforcement=_enforcement(item, "own_enforcement") if "own_enforcement" in item else None,
            inherit=item.get("inherit") is not False,
            alert_percents=_percents(item, "own_alert_percents") if "own_alert_percents" in item else None,
        ),
        has_own=item.get("has_own") is True,
        terms=Terms(_limits(item, ""), _enforcement(item, "enforcement"), _percents(item, "alert_percents")),
        defaults_version=whole(item, "dv"),
        limits_version=whole(item, "lv"),
        own_version=whole(item, "ov"),
        first_epoch=whole(item, "first_epoch"),
        epoch=whole(item, "epoch"),
        refresh_id=optional_text(item, "refresh_id"),
        last_execution_at_ms=optional_whole(item, "last_execution_at"),
        last_execution_status=optional_text(item, "last_execution_status"),
        version=whole(item, "v"),
        created_at_ms=whole(item, "created_at"),
        updated_at_ms=whole(item, "updated_at"),
    )


def agreed_attributes(ledger: Ledger) -> Item:
    """What changes only together with `lv`."""
    return {
        **_terms_attributes(ledger.terms),
        **_own_attributes(ledger.own),
        "has_own": ledger.has_own,
        "dv": ledger.defaults_version,
        "lv": ledger.limits_version,
        "ov": ledger.own_version,
    }


def budget_image(ledger: Ledger) -> Image:
    """What was asked, as the audit shows it."""
    return {**_own_attributes(ledger.own, ""), "version": ledger.own_version}


def used_attribute(slot: Slot) -> str:
    return f"{slot.name}_used"


def held_attribute(dimension: Dimension) -> str:
    return f"{dimension.value}_held"


def errors_attribute(span: Span) -> str:
    return f"{span.value}_errors"


def _terms_attributes(terms: Terms) -> Item:
    return {
        **{f"{slot.name}_limit": limit for slot, limit in terms.limits.items()},
        "enforcement": terms.enforcement.value,
        "alert_percents": [*terms.alert_percents],
    }


def _own_attributes(own: OwnBudget, prefix: str = "own_") -> Item:
    item: Item = {f"{prefix}{slot.name}_limit": limit for slot, limit in own.limits.items()}
    item["inherit"] = own.inherit
    if own.enforcement is not None:
        item[f"{prefix}enforcement"] = own.enforcement.value
    if own.alert_percents is not None:
        item[f"{prefix}alert_percents"] = [*own.alert_percents]
    return item


def _limits(item: Mapping[str, Value], prefix: str) -> dict[Slot, int]:
    names = {slot: f"{prefix}{slot.name}_limit" for slot in SLOTS}
    return {slot: whole(item, name) for slot, name in names.items() if name in item}


def _enforcement(item: Mapping[str, Value], attribute: str) -> Enforcement:
    try:
        return Enforcement(text(item, attribute))
    except ValueError:
        raise UnknownShape(item, f"{attribute} is not known") from None


def _percents(item: Mapping[str, Value], attribute: str) -> tuple[int, ...]:
    values = item.get(attribute)
    if not isinstance(values, list):
        raise UnknownShape(item, f"{attribute} is not a list")
    found = tuple(value for value in values if type(value) is int)
    if len(found) != len(values):
        raise UnknownShape(item, f"{attribute} has elements that are not whole numbers")
    return found
