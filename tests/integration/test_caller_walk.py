"""Who may have reported is found once each, whatever there is of it and wherever the walk breaks off."""

from dataclasses import dataclass

import pytest

from sluice.core.metering import Counters
from sluice.repository import keys
from sluice.repository.counters import CounterName
from sluice.repository.totals import write_total
from sluice.services import callers
from sluice.services.callers import START, CallerWalk
from sluice.services.counted import CountedEntities
from sluice.services.settings import SettingsCache
from tests.fakes import FakeClock
from tests.integration.metering_desks import APP, LABEL, NAMESPACE, ORG, OTHER_APP, MeteringDesk, simulated_desk
from tests.tenancy import tenant_items

PRESENT = [f"app-{number}" for number in range(9)]
# Keys spell some of them otherwise; in their order "100%" stands before "a!", and both before "app-0".
FORMER = ["a!", "100%", "zeta", "app-2b", "é", "chat#1"]


@dataclass
class Walked:
    desk: MeteringDesk
    walk: CallerWalk

    def counted(self, entity: str) -> None:
        name = CounterName(NAMESPACE, entity, LABEL, "20270115")
        self.desk.store.inner.update(write_total(name, Counters(), 1, 1), repeatable=True)

    def remove(self, app: str) -> None:
        """As much as a removal leaves nothing of."""
        for key in (keys.app_settings(NAMESPACE, app), keys.entity(NAMESPACE, app)):
            self.desk.store.inner.delete({"Key": {**key.attributes}})

    def everybody(self) -> list[str]:
        found: list[str] = []
        reached: str | None = START
        while reached is not None:
            some = self.walk.behind(NAMESPACE, reached)
            found += some.found
            assert len(some.found) <= callers.CALLERS_MAX
            reached = some.reached
        return found


@pytest.fixture
def walked() -> Walked:
    desk, _ = simulated_desk()
    for item in tenant_items(NAMESPACE, ORG, *PRESENT):
        if item["kind"] in {"app", "entity"}:
            desk.store.inner.put({"Item": item}, repeatable=True)
    store = desk.store.inner
    walked = Walked(desk, CallerWalk(store, SettingsCache(store, FakeClock()), CountedEntities(store)))
    for entity in (*FORMER, ORG, *PRESENT[::2]):
        walked.counted(entity)
    return walked


EVERYBODY = [ORG, APP, OTHER_APP, *PRESENT, *FORMER]


@pytest.mark.parametrize("count", [1, 2, 3, 7, len(EVERYBODY), 25])
def test_each_is_found_once(walked: Walked, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "CALLERS_MAX", count)
    found = walked.everybody()
    assert sorted(found) == sorted(EVERYBODY)
    assert found == sorted(found, key=keys.encode)


def test_who_leaves_or_comes_meanwhile_is_met_once_at_most(walked: Walked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "CALLERS_MAX", 6)
    first = walked.walk.behind(NAMESPACE, START)
    assert first.reached is not None
    # One that was met, and stays as its totals; and one that was not yet.
    gone, later = first.found[-1], "search"
    for app in (gone, later):
        walked.counted(app)
        walked.remove(app)
    walked.counted("aaa-came-behind")
    rest: list[str] = []
    reached: str | None = first.reached
    while reached is not None:
        some = walked.walk.behind(NAMESPACE, reached)
        rest += some.found
        reached = some.reached
    assert sorted([*first.found, *rest]) == sorted(EVERYBODY)


def test_an_app_that_is_gone_without_totals_is_passed_over(walked: Walked) -> None:
    walked.remove(PRESENT[1])
    walked.remove(PRESENT[2])
    assert sorted(walked.everybody()) == sorted(set(EVERYBODY) - {PRESENT[1]})
