"""Where selection stands on a local day, and the label that somebody set for it. Pure.

One item per app or org and day; a new day begins without one. Selection moves the active label, people set the
override: each writes its own attributes only, so that neither takes back what the other did.

A move is conditioned on the label that was seen: of many that saw the same one moves it, and whoever read something
old moves nothing, because selection does not come back to a label that it left.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from sluice.core.period import LocalDay
from sluice.core.selection import Choice, Stand
from sluice.repository import money_keys, schema
from sluice.repository.audit import Image
from sluice.repository.expressions import assigned
from sluice.repository.requests import TransactWrite, UpdateRequest
from sluice.repository.shapes import check_kind, optional_text, optional_whole, text, whole
from sluice.repository.wire import Item, Value

STICKY_STATE: Final = "sticky_state"
KEPT_S: Final = 27 * 3_600
"""After the end of the day as it was known when this was written. Clocks differ; and a change of the zone that comes
later makes the day longer, by 26 hours at most. Were the item gone before, selection would start the day anew."""

_OVERRIDE: Final = ("override_label", "override_reason", "override_by", "override_until_ms")


class StickyName(NamedTuple):
    """`entity`: the app or org whose selection it is."""

    namespace: str
    entity: str
    day: LocalDay


@dataclass(frozen=True, slots=True)
class Override:
    """`by`: who set it. `until_ms`: it no longer holds then."""

    label: str
    reason: str
    by: str
    until_ms: int

    def holds(self, now_ms: int) -> bool:
        return now_ms < self.until_ms


@dataclass(frozen=True, slots=True)
class StickyState:
    """`active_label`: None before selection moved. `moved_at_ms`: when it did so last."""

    active_label: str | None = None
    previous_label: str | None = None
    moved_at_ms: int | None = None
    override: Override | None = None

    def stand(self, now_ms: int) -> Stand:
        override = None if self.override is None or not self.override.holds(now_ms) else self.override.label
        return Stand(self.active_label, self.previous_label, override)


UNMOVED: Final = StickyState()


def move(name: StickyName, choice: Choice, seen_label: str | None, now_ms: int) -> UpdateRequest:
    """Fails where selection stands elsewhere than it was seen.

    May be repeated after a lost answer: it then finds its own label.
    """
    names, sets, values = assigned(
        {
            **_fixed(name),
            "active_label": choice.label,
            "previous_label": choice.previous_label,
            "reason": choice.reason.value,
            "activated_at": now_ms,
            "updated_at": now_ms,
        }
    )
    condition = "attribute_not_exists(#active)"
    if seen_label is not None:
        condition += " OR #active = :seen"
        values[":seen"] = seen_label
    return {
        "Key": _key(name),
        "UpdateExpression": f"SET {sets}, #created = if_not_exists(#created, :now)",
        "ConditionExpression": condition,
        "ExpressionAttributeNames": {**names, "#active": "active_label", "#created": "created_at"},
        "ExpressionAttributeValues": {**values, ":now": now_ms},
    }


def override_set(name: StickyName, override: Override, seen: Override | None, now_ms: int) -> TransactWrite:
    """Replaces the one that was seen, or none."""
    names, sets, values = assigned({**_fixed(name), **_override_attributes(override), "updated_at": now_ms})
    condition, seen_names, seen_values = _as_seen(seen)
    return {
        "Update": {
            "Key": _key(name),
            "UpdateExpression": f"SET {sets}, #created = if_not_exists(#created, :now)",
            "ConditionExpression": condition,
            "ExpressionAttributeNames": {**names, **seen_names, "#created": "created_at"},
            "ExpressionAttributeValues": {**values, **seen_values, ":now": now_ms},
        }
    }


def override_remove(name: StickyName, seen: Override, now_ms: int) -> TransactWrite:
    condition, names, values = _as_seen(seen)
    return {
        "Update": {
            "Key": _key(name),
            "UpdateExpression": f"SET #updated = :now REMOVE {', '.join(names)}",
            "ConditionExpression": condition,
            "ExpressionAttributeNames": {**names, "#updated": "updated_at"},
            "ExpressionAttributeValues": {**values, ":now": now_ms},
        }
    }


def decode_sticky(item: Mapping[str, Value]) -> StickyState:
    check_kind(item, STICKY_STATE)
    override = None
    if "override_label" in item:
        override = Override(
            label=text(item, "override_label"),
            reason=text(item, "override_reason"),
            by=text(item, "override_by"),
            until_ms=whole(item, "override_until_ms"),
        )
    return StickyState(
        active_label=optional_text(item, "active_label"),
        previous_label=optional_text(item, "previous_label"),
        moved_at_ms=optional_whole(item, "activated_at"),
        override=override,
    )


def override_image(override: Override) -> Image:
    """As the audit shows it, which tells by itself who did it."""
    return {"label": override.label, "reason": override.reason, "until_ms": override.until_ms}


def _key(name: StickyName) -> Item:
    return {**money_keys.sticky(name.namespace, name.entity, name.day.name).attributes}


def _fixed(name: StickyName) -> Item:
    """What the item has from its name alone, whoever makes it."""
    return {
        "kind": STICKY_STATE,
        "ns": name.namespace,
        "entity_id": name.entity,
        "day": name.day.name,
        schema.TTL_ATTRIBUTE: -(-name.day.ends_ms // 1000) + KEPT_S,
    }


def _override_attributes(override: Override) -> Item:
    return dict(zip(_OVERRIDE, (override.label, override.reason, override.by, override.until_ms), strict=True))


def _as_seen(seen: Override | None) -> tuple[str, dict[str, str], dict[str, Value]]:
    if seen is None:
        return "attribute_not_exists(#o0)", {"#o0": _OVERRIDE[0]}, {}
    attributes = _override_attributes(seen)
    names = {f"#o{number}": attribute for number, attribute in enumerate(attributes)}
    values: dict[str, Value] = {f":o{number}": content for number, content in enumerate(attributes.values())}
    return " AND ".join(f"#o{number} = :o{number}" for number in range(len(attributes))), names, values
