"""A change of the zone that is planned as late as may be, and a call reported by a clock that is a minute ahead."""

from dataclasses import replace

from sluice.core.metering import AHEAD_MAX_MS
from sluice.core.orgs import OrgChange, merge_org
from sluice.core.timelines import LEAD_MS, always, next_midnight_ms
from sluice.repository import keys
from sluice.repository.orgs import decode_org, encode_org
from sluice.services.settings import CACHE_MS
from sluice.services.zones import ZoneCalendar
from tests.integration.metering_desks import NAMESPACE, SETTINGS, simulated_desk

EARLIER, LATER = always("Pacific/Kiritimati"), "Pacific/Honolulu"
"""At midnight there it is a day earlier here."""
STORED_AFTER_MS = 8_000
"""The moment that a change is planned by is before it can be read: clocks differ, and writes take their time."""


def test_a_call_has_one_day_in_every_process() -> None:
    """The first still goes by what it read just before, and the repeat by what was changed."""
    desk, _ = simulated_desk(settings=replace(SETTINGS, zones=EARLIER))
    calendar = ZoneCalendar()
    midnight_ms = next_midnight_ms(EARLIER, desk.clock.now_ms, calendar)
    desk.clock.now_ms = midnight_ms - LEAD_MS + STORED_AFTER_MS
    desk.submit(request_id="before", occurred_at_ms=desk.clock.now_ms)
    item = desk.store.inner.get(keys.org_settings(NAMESPACE), consistent=True)
    assert item is not None
    org = decode_org(item)
    settings = merge_org(org.settings, OrgChange(timezone=LATER), midnight_ms - LEAD_MS, calendar)
    assert settings.zones[-1].from_ms == midnight_ms
    desk.store.inner.put({"Item": encode_org(replace(org, settings=settings))}, repeatable=True)

    desk.clock.advance(CACHE_MS - 1)
    ahead_ms = desk.clock.now_ms + AHEAD_MAX_MS
    first = desk.submit(occurred_at_ms=ahead_ms)
    again = desk.elsewhere().submit(occurred_at_ms=ahead_ms)
    assert (again.duplicate, again.event) == (True, first.event)
