"""Who asked which label to use, and what they were told; and who set a label for a while.

A client uses the label that it was told, so quotas fill, and everybody notices a little later.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from sluice.core.audit import BY_SYSTEM
from sluice.core.errors import AllQuotasExceeded, InvalidRequest, NotFound, UnknownLabel
from sluice.core.metering import CallStatus
from sluice.core.pricing import TokenKind
from sluice.core.reports import UsageReport
from sluice.services.labels import LabelFields
from sluice.services.overrides import Wanted
from sluice.services.selection import Selected
from tests.simulation.money_hosts import APPS, LABELS, ORG, USERS, app_above, money_of, reporter_of
from tests.simulation.world import Client, Outcome, Request, World

LATE: Final = "luxury"
"""A label that an ordering may name, and that nobody defines before the day is on its way."""
PRICES: Final = {**LABELS, LATE: 60_000_000}
QUOTA_USD_MICROS: Final = 1_000_000
SECONDS_MS: Final = 1_000


@dataclass(frozen=True)
class Asked:
    """`whose`: the app or org whose selection it is. `told`: None where it did not say a label."""

    request: Request
    whose: str
    told: Selected | AllQuotasExceeded | None


@dataclass
class Diary:
    """`entities`: who asks. `obedience`: how often they use what they were told; else quotas fill side by side."""

    asked: list[Asked] = field(default_factory=list)
    calls: int = 0
    entities: Sequence[str] = (ORG, *APPS, *USERS)
    obedience: float = 0.9


def diary_of(world: World) -> Diary:
    if "diary" not in world.notes:
        world.notes["diary"] = Diary()
    diary: Diary = world.notes["diary"]
    return diary


class Chooser:
    """One client's way to the product."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._diary = diary_of(client.world)

    def ask_and_use(self) -> None:
        """For some entity, and mostly as it was told."""
        random = self._client.random
        entity = random.choice(self._diary.entities)
        told = self._ask(entity)
        while random.random() < 0.4:
            told = self._ask(entity)
        label = told.label if isinstance(told, Selected) else random.choice(list(LABELS))
        if random.random() < 0.8:
            self._use(entity, label if random.random() < self._diary.obedience else random.choice(list(LABELS)))

    def set_or_remove(self) -> None:
        """Also a label that nobody may use, and a time that is over."""
        world, random = self._client.world, self._client.random
        entity = random.choice((ORG, *APPS))
        until_ms = None if random.random() < 0.2 else self._client.clock_ms() + random.choice((5, 40, -1)) * SECONDS_MS
        wanted = Wanted(random.choice((*LABELS, "nobody-knows")), "because", until_ms)
        is_set = random.random() < 0.7

        def ask() -> Outcome:
            overrides = money_of(world).of(self._client).money.overrides
            try:
                if is_set:
                    overrides.put(world.namespace, entity, wanted, author=BY_SYSTEM)
                else:
                    overrides.remove(world.namespace, entity, author=BY_SYSTEM)
            except (InvalidRequest, NotFound, UnknownLabel):
                return Outcome.INVALID
            return Outcome.DONE

        self._client.attempt(f"override {wanted.label if is_set else 'nothing'} for {entity}", ask)

    def define_late(self) -> None:
        """Once more makes no difference."""

        def ask() -> Outcome:
            fields = LabelFields(f"model-of-{LATE}", input_price_usd_micros_per_1m=PRICES[LATE])
            money_of(self._client.world).of(self._client).money.labels.put(
                self._client.world.namespace, LATE, fields, author=BY_SYSTEM
            )
            return Outcome.DONE

        self._client.attempt(f"definition of {LATE}", ask)

    def _ask(self, entity: str) -> Selected | AllQuotasExceeded | None:
        world = self._client.world
        told: list[Selected | AllQuotasExceeded] = []

        def ask() -> Outcome:
            try:
                told.append(money_of(world).of(self._client).money.selection.select_for(world.namespace, entity))
            except AllQuotasExceeded as spent:
                told.append(spent)
                return Outcome.REFUSED
            except UnknownLabel:
                return Outcome.INVALID
            return Outcome.DONE

        request = self._client.attempt(f"label for {entity}", ask)
        whose = app_above(entity, ORG) or ORG
        self._diary.asked.append(Asked(request, whose, told[0] if told else None))
        return told[0] if told else None

    def _use(self, entity: str, label: str) -> None:
        """A call that costs a part of a quota, reported until somebody knows."""
        world, random = self._client.world, self._client.random
        self._diary.calls += 1
        tokens = random.choice((2, 6, 11)) * QUOTA_USD_MICROS * 1_000_000 // (10 * PRICES[label])
        report = UsageReport(
            request_id=f"call-{self._diary.calls}",
            status=CallStatus.OK,
            tokens={TokenKind.INPUT: tokens},
            label=label,
            entity=entity,
            occurred_at_ms=self._client.clock_ms(),
        )

        def ask() -> Outcome:
            money_of(world).of(self._client).money.metering.submit(reporter_of(world, ORG), report)
            return Outcome.DONE

        for _ in range(3):
            request = self._client.attempt(f"call of {label} by {entity}", ask)
            if request.outcome not in {Outcome.CONTENDED, Outcome.UNAVAILABLE}:
                return
