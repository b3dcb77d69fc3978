"""Whether a report was counted before: by the event that stands under its key."""

from collections.abc import Sequence
from dataclasses import dataclass

from sluice.core.errors import RequestIdConflict
from sluice.repository.events import UsageEvent, decode_event
from sluice.repository.keys import key_of
from sluice.repository.store import Store
from sluice.services.judging import Keys, Opened


@dataclass(frozen=True, slots=True)
class Repeated:
    """A report that was counted before, as that event."""

    event: UsageEvent


def repeat_of(opened: Opened, event: UsageEvent) -> Repeated | RequestIdConflict:
    """What a report is whose key is taken by that event."""
    return Repeated(event) if event.body_hash == opened.body_hash else RequestIdConflict()


def counted_before(store: Store, opened: Sequence[Opened]) -> dict[Keys, UsageEvent]:
    """By the reports' keys, the events that stand in their way. Read consistently, in one call for a hundred keys."""
    keys = dict.fromkeys(key for one in opened for key in one.keys)
    events = {key_of(item): decode_event(item) for item in store.batch_get(list(keys), consistent=True)}
    found: dict[Keys, UsageEvent] = {}
    for one in opened:
        late = [events[key] for key in one.elsewhere if key in events]
        standing = [events[one.key]] if one.key in events else []
        standing += [event for event in late if event.received_at_ms >= one.since_ms]
        if standing:
            found[one.keys] = standing[0]
    return found
