"""When clients, secrets and tokens begin and end, told by what was asked and answered, and by what the stream shows of
clients and namespaces. Marks, hashes and ends of secrets are not looked at: whether they do their work is the question.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from sluice.repository import keys
from tests.simulation.identity_deeds import Deed, Journal, Kind, Secret, journal_of
from tests.simulation.identity_hosts import TokenSet
from tests.simulation.scenario import Violated
from tests.simulation.stream import StreamRecord
from tests.simulation.world import Outcome, World

HOUR_MS: Final = 3_600_000
NEVER_MS: Final = 10**18


@dataclass(frozen=True)
class Rotation:
    at_ms: int
    generation: int
    grace_hours: int
    request: int


@dataclass
class Life:
    """Of a client. `ended_ms`: it was removed, or the purge of its namespace was started."""

    client_id: str
    namespace: str
    made_ms: int
    ended_ms: int = NEVER_MS
    rotations: list[Rotation] = field(default_factory=list)

    def secret_ends_ms(self, generation: int) -> int:
        """By the next rotation after its grace, by any later one without grace at once."""
        ends_ms = NEVER_MS
        for rotation in self.rotations:
            if rotation.generation == generation + 1:
                ends_ms = rotation.at_ms + rotation.grace_hours * HOUR_MS
            if rotation.generation > generation and rotation.grace_hours == 0:
                ends_ms = min(ends_ms, rotation.at_ms)
        return ends_ms

    def tokens_end_ms(self, generation: int) -> int:
        """Of tokens that were opened with this secret."""
        ends = [one.at_ms for one in self.rotations if one.generation > generation and one.grace_hours == 0]
        return min([self.ended_ms, *ends])


@dataclass(frozen=True)
class Fate:
    """`certain_ms`: from then on everybody was told that it is over. `possible_ms`: from then on it may be."""

    certain_ms: int = NEVER_MS
    possible_ms: int = NEVER_MS

    def __or__(self, other: "Fate") -> "Fate":
        return Fate(min(self.certain_ms, other.certain_ms), min(self.possible_ms, other.possible_ms))


class Lives:
    """Of one world, as it is when its clients are done."""

    def __init__(self, world: World) -> None:
        self.journal: Journal = journal_of(world)
        self.lives: dict[str, Life] = {}
        self.purges_ms: dict[str, int] = {}
        self._world = world
        self._marked_ms: dict[str, int] = {}
        for record in world.table.stream:
            self._follow(record)
        for life in self.lives.values():
            life.ended_ms = min(life.ended_ms, self.purges_ms.get(life.namespace, NEVER_MS))

    @cached_property
    def unsure_ms(self) -> int:
        """How far a look at one clock and a look at another may be apart where both should see the same moment."""
        longest = 0
        for deed in self.journal.deeds.values():
            request = deed.request
            if deed.kind is not Kind.RUN_JOBS and request.ended_ms is not None:
                longest = max(longest, request.ended_ms - request.started_ms)
        for record in self._world.table.stream:
            deed_of = self.journal.deeds.get(record.cause) if isinstance(record.cause, int) else None
            if deed_of is not None and deed_of.kind is not Kind.RUN_JOBS:
                longest = max(longest, record.created_ms - deed_of.request.started_ms)
        skews_ms = self._world.skews_ms
        return longest + max(skews_ms) - min(skews_ms)

    def life(self, secret: Secret) -> tuple[Life, int]:
        """Of whoever it opens, and which generation it is."""
        life = self.lives[secret.client_id]
        made = [one.generation for one in life.rotations if one.request == secret.request]
        return life, made[0] if made else 1

    def of_access(self, tokens: TokenSet) -> Fate:
        return self._of_bearer(tokens) | self._families[tokens.access.family] | self._tokens[tokens.access.token_id]

    def of_refresh(self, tokens: TokenSet) -> Fate:
        return self._of_bearer(tokens) | self._families[tokens.refresh.family]

    def shown_before(self, deed: Deed) -> bool:
        """Whether somebody else showed the refresh token of this deed before it was answered."""
        assert deed.tokens is not None
        shown = self._shown[deed.tokens.refresh.token_id]
        return any(one is not deed and one.request.started_ms <= _ended_ms(deed) for one in shown)

    def is_reuse(self, deed: Deed) -> bool:
        """Whether a refresh token was shown that had certainly been used up before."""
        assert deed.tokens is not None
        return self._marked_ms.get(deed.tokens.refresh.token_id, NEVER_MS) < deed.request.started_ms

    def _of_bearer(self, tokens: TokenSet) -> Fate:
        bearer = tokens.access.bearer
        ends_ms = self.lives[bearer.client_id].tokens_end_ms(bearer.secret_generation)
        return Fate(ends_ms, ends_ms)

    @cached_property
    def _shown(self) -> dict[str, list[Deed]]:
        shown: dict[str, list[Deed]] = defaultdict(list)
        for deed in self.journal.of_kind(Kind.REFRESH):
            assert deed.tokens is not None
            shown[deed.tokens.refresh.token_id].append(deed)
        return shown

    @cached_property
    def _tokens(self) -> dict[str, Fate]:
        """Of single access tokens."""
        return _fates(
            (deed.tokens.access.token_id, _revoked(deed))
            for deed in self.journal.of_kind(Kind.REVOKE)
            if deed.tokens is not None and not deed.whole_family
        )

    @cached_property
    def _families(self) -> dict[str, Fate]:
        found = [
            (deed.tokens.refresh.family, _revoked(deed))
            for deed in self.journal.of_kind(Kind.REVOKE)
            if deed.tokens is not None and deed.whole_family
        ]
        for deeds in self._shown.values():
            for number, deed in enumerate(deeds):
                assert deed.tokens is not None
                told = deed.request.outcome is Outcome.REFUSED and self.is_reuse(deed)
                possible_ms = deed.request.started_ms if number else NEVER_MS
                certain_ms = _ended_ms(deed) if told else NEVER_MS
                found.append((deed.tokens.refresh.family, Fate(certain_ms, min(possible_ms, certain_ms))))
        return _fates(found)

    def _follow(self, record: StreamRecord) -> None:
        item = record.new or record.old
        assert item is not None
        kind = item.get("kind")
        if kind == "client":
            self._follow_client(record)
        elif kind == "namespace" and record.new is not None and record.new["state"] == "purging":
            self.purges_ms.setdefault(str(item["ns"]), record.created_ms)
        elif kind == "revoked" and record.old is None and item["token_type"] == "refresh":
            token_id = record.key.pk.removeprefix(keys.revoked_token("").pk)
            self._marked_ms.setdefault(token_id, record.created_ms)

    def _follow_client(self, record: StreamRecord) -> None:
        item = record.new or record.old
        assert item is not None
        client_id = str(item["client_id"])
        if record.new is None:
            self.lives[client_id].ended_ms = record.created_ms
        elif record.old is None:
            self.lives[client_id] = Life(client_id, str(item["ns"]), record.created_ms)
        elif record.new["gen"] != record.old["gen"]:
            deed = self.journal.deeds.get(record.cause) if isinstance(record.cause, int) else None
            if deed is None or deed.grace_hours is None:
                raise Violated(f"a new secret that nobody asked for: {record}")
            rotation = Rotation(record.created_ms, int(str(record.new["gen"])), deed.grace_hours, deed.request.number)
            self.lives[client_id].rotations.append(rotation)


def lives_of(world: World) -> Lives:
    """Asked for when the clients are done; what is done in peace afterwards is no part of it."""
    if "lives" not in world.notes:
        world.notes["lives"] = Lives(world)
    lives: Lives = world.notes["lives"]
    return lives


def _revoked(deed: Deed) -> Fate:
    if deed.request.outcome is Outcome.REFUSED:
        return Fate()
    certain_ms = _ended_ms(deed) if deed.request.outcome is Outcome.DONE else NEVER_MS
    return Fate(certain_ms, deed.request.started_ms)


def _ended_ms(deed: Deed) -> int:
    return NEVER_MS if deed.request.ended_ms is None else deed.request.ended_ms


def _fates(found: Iterable[tuple[str, Fate]]) -> dict[str, Fate]:
    fates: dict[str, Fate] = defaultdict(Fate)
    for name, fate in found:
        fates[name] |= fate
    return fates
