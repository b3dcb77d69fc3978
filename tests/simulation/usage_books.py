"""Who reported what, and what they were told. The invariants go by this, not by what the product told somebody else.

A client keeps its reports until it knows what became of them, and sends the same ones again: rule 7.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from sluice.core.errors import (
    Contended,
    InvalidRequest,
    NotFound,
    PriceMissing,
    RequestIdConflict,
    SluiceError,
    Unavailable,
    UnknownLabel,
)
from sluice.core.lease import Lease
from sluice.core.metering import AHEAD_MAX_MS, LATE_MAX_MS, CallStatus
from sluice.core.pricing import Pricing, TokenKind
from sluice.core.reports import UsageReport
from sluice.services.metering import Counted
from tests.simulation.money_hosts import APPS, LABELS, MODELS, ORG, USERS, money_of, reporter_of
from tests.simulation.paces import MINUTE_MS
from tests.simulation.world import Client, Outcome, Request, World

DAY_MS: Final = 86_400_000
# A report that does not say when the call was is recognised for an hour; nobody repeats it close to that.
REPEATED_FOR_MS: Final = 45 * MINUTE_MS
# No clock is further off than this, so that what should be accepted is.
CLOCKS_MS: Final = 5_000
TRIES_MAX: Final = 6

REFUSALS: Final = (InvalidRequest, NotFound, PriceMissing, RequestIdConflict, UnknownLabel)
"""What a reporter is told whose report counts for nothing."""

Answer = Counted | SluiceError


@dataclass(frozen=True)
class Intent:
    """A report that somebody wants to be counted, and by whom. `made_ms`: by the right time."""

    reporter: str
    report: UsageReport
    made_ms: int


@dataclass(frozen=True)
class Attempt:
    """One request. `answers`: one for each report; empty where the request came to no end."""

    request: Request
    reporter: str
    reports: tuple[UsageReport, ...]
    answers: list[Answer] = field(default_factory=list)

    def told(self, position: int) -> Answer | None:
        """None where nobody can know."""
        answer = self.answers[position] if self.answers else None
        return None if isinstance(answer, Unavailable) else answer


@dataclass
class Book:
    """`waiting`: by client, what it does not know the end of, with how often it was sent.

    `factors`: how many times the first prices the prices ever were. `labels`, `reporters`: of the calls of this world,
    `late_share`: of them that are of some day before. `shards`: as many as were asked for last.
    """

    attempts: dict[int, Attempt] = field(default_factory=dict)
    intents: list[Intent] = field(default_factory=list)
    leases: list[Lease] = field(default_factory=list)
    waiting: dict[str, dict[int, int]] = field(default_factory=dict)
    factors: list[int] = field(default_factory=lambda: [1])
    labels: Sequence[str] = tuple(LABELS)
    reporters: Sequence[str] = (*APPS, ORG)
    late_share: float = 0.25
    shards: int = 1


def book_of(world: World) -> Book:
    if "book" not in world.notes:
        world.notes["book"] = Book()
    book: Book = world.notes["book"]
    return book


class Writer:
    """One client's way to the product. By their places in the book, intents survive a crash."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._book = book_of(client.world)
        self._waiting = self._book.waiting.setdefault(client.name, {})

    def report_new(self) -> None:
        """One, or several at once; of one id perhaps two."""
        random = self._client.random
        reporter = random.choice(self._book.reporters)
        # Now and then more than one transaction takes.
        count = random.choices((1, random.randint(2, 5), random.randint(60, 80)), (60, 39, 1))[0]
        places = [self._draw(reporter) for _ in range(count)]
        if count > 1 and random.random() < 0.3:
            places.append(random.choice(places))
        self.send(places)

    def report_again(self) -> None:
        """What this client, or any other, has sent before; alone or among others of the same reporter."""
        random, book = self._client.random, self._book
        if not book.intents:
            return
        first = random.choice(book.intents[-8:])
        others = [number for number, one in enumerate(book.intents) if one.reporter == first.reporter]
        places = [book.intents.index(first), *random.sample(others, min(len(others), random.choice((0, 0, 1, 3))))]
        self.send(places)

    def report_otherwise(self) -> None:
        """The id of another report, with another body."""
        random, book = self._client.random, self._book
        if not book.intents:
            return
        known = random.choice(book.intents[-8:])
        tokens = {**known.report.tokens, TokenKind.OUTPUT: known.report.tokens.get(TokenKind.OUTPUT, 0) + 1}
        changed = replace(known.report, tokens=tokens)
        if random.random() < 0.3:
            changed = replace(changed, occurred_at_ms=self._occurred_at_ms())
        self.send([self._enter(Intent(known.reporter, changed, known.made_ms))])

    def report_waiting(self) -> bool:
        """Whether there was anything that was not answered."""
        places = list(self._waiting)[: self._client.random.randint(1, 4)]
        if places:
            reporter = self._book.intents[places[0]].reporter
            self.send([place for place in places if self._book.intents[place].reporter == reporter])
        return bool(places)

    def send(self, places: Sequence[int]) -> None:
        client, book = self._client, self._book
        wanted = [place for place in places if self._may_repeat(book.intents[place])]
        for place in set(places) - set(wanted):
            self._waiting.pop(place, None)
        if not wanted:
            return
        for place in dict.fromkeys(wanted):
            self._waiting[place] = self._waiting.get(place, 0) + 1
        intents = [book.intents[place] for place in wanted]
        reports = tuple(intent.report for intent in intents)
        number = len(client.world.history)
        text = ", ".join(report.request_id for report in reports)
        client.attempt(
            f"usage {text} by {intents[0].reporter}", lambda: self._ask(number, intents[0].reporter, reports)
        )
        self._settle(number, wanted)

    def _ask(self, number: int, entity: str, reports: tuple[UsageReport, ...]) -> Outcome:
        world = self._client.world
        attempt = self._book.attempts[number] = Attempt(world.history[number], entity, reports)
        metering, reporter = money_of(world).of(self._client).money.metering, reporter_of(world, entity)
        if len(reports) > 1 or self._client.random.random() < 0.3:
            attempt.answers.extend(metering.submit_batch(reporter, reports))
            return Outcome.DONE
        try:
            attempt.answers.append(metering.submit(reporter, reports[0]))
        except REFUSALS as refusal:
            attempt.answers.append(refusal)
            return Outcome.INVALID
        except (Contended, Unavailable) as error:
            attempt.answers.append(error)
            raise
        return Outcome.DONE

    def _settle(self, number: int, places: Sequence[int]) -> None:
        """What was answered needs no other try; what was not is given up in the end."""
        attempt = self._book.attempts[number]
        for position, place in enumerate(places):
            answer = attempt.told(position)
            is_known = answer is not None and not isinstance(answer, Contended)
            if is_known or self._waiting.get(place, 0) >= TRIES_MAX:
                self._waiting.pop(place, None)

    def _may_repeat(self, intent: Intent) -> bool:
        age_ms = self._client.world.scheduler.now_ms - intent.made_ms
        return intent.report.occurred_at_ms is not None or age_ms < REPEATED_FOR_MS

    def _draw(self, reporter: str) -> int:
        world, random, book = self._client.world, self._client.random, self._book
        number = len(book.intents)
        lease = random.choice(book.leases[-6:]) if book.leases and random.random() < 0.4 else None
        if lease is not None and app_may_report(reporter, lease.entity):
            entity: str | None = lease.entity
        else:
            lease, entity = None, self._entity(reporter)
        label = random.choice(book.labels)
        drawn = random.random()
        kinds = {TokenKind.INPUT: random.choice((0, 40, 10**6 + 1)), TokenKind.OUTPUT: random.choice((0, 7, 999_999))}
        if random.random() < 0.1:
            # Of which nobody knows the price.
            kinds[TokenKind.CACHE_READ] = 5
        report = UsageReport(
            request_id=f"request-{number}",
            status=random.choice((*(CallStatus.OK,) * 3, CallStatus.ERROR, CallStatus.TIMEOUT)),
            tokens=kinds,
            label=label if drawn < 0.7 else None,
            model_id=None if drawn < 0.7 else MODELS[label] if drawn < 0.9 else "model-of-nobody",
            entity=entity,
            pricing=Pricing.STANDARD,
            occurred_at_ms=None if random.random() < 0.35 else self._occurred_at_ms(),
            tags={"number": str(number)} if random.random() < 0.2 else {},
            lease=lease,
        )
        return self._enter(Intent(reporter, report, world.scheduler.now_ms))

    def _enter(self, intent: Intent) -> int:
        known = self._book.intents
        for place, one in enumerate(known):
            if (one.reporter, one.report) == (intent.reporter, intent.report):
                return place
        known.append(intent)
        return len(known) - 1

    def _entity(self, reporter: str) -> str | None:
        random = self._client.random
        if random.random() < 0.3:
            return None
        if random.random() < 0.15:
            return f"new-{reporter}-{random.randint(0, 2)}"
        # Now and then somebody else's, which is refused.
        own = [user for user in USERS if app_may_report(reporter, user)]
        return random.choice(list(USERS) if random.random() < 0.1 else [reporter, *own])

    def _occurred_at_ms(self) -> int:
        random, now_ms = self._client.random, self._client.clock_ms()
        drawn = random.random()
        if drawn > self._book.late_share:
            if random.random() < 0.8:
                return now_ms - self._client.world.random_below(2 * MINUTE_MS)
            return now_ms + AHEAD_MAX_MS - self._client.world.random_below(random.choice((CLOCKS_MS, AHEAD_MAX_MS)))
        if drawn > 0.05:
            return now_ms - self._client.world.random_below(2 * DAY_MS)
        # Close to as late as may be, and later.
        return now_ms - LATE_MAX_MS + random.choice((CLOCKS_MS, 12 * 60 * MINUTE_MS, -CLOCKS_MS))


def app_may_report(reporter: str, entity: str) -> bool:
    return reporter in (ORG, entity, USERS.get(entity))
