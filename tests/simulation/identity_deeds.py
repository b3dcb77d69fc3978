"""What clients do about identity, and what they were told. The invariants go by this, not by what the product stored.

Each deed is one request. What it hands out is kept only if the answer came.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Final

from sluice.core.audit import BY_SYSTEM
from sluice.core.errors import IdTaken, RotationConflict, Suspended, TooManyRequests, Unauthorized
from sluice.core.identity import TokenType
from sluice.core.orgs import AppChange, OrgChange
from sluice.core.signals import Signal
from sluice.services.orgs import OrgPath
from tests.simulation.identity_hosts import Desks, Identity, TokenSet, desks_of
from tests.simulation.world import Client, Outcome, Request, World

TURNED_AWAY: Final = (IdTaken, RotationConflict, Suspended, TooManyRequests)


class Kind(StrEnum):
    LOG_IN = "log in"
    REFRESH = "refresh"
    USE = "use"
    REVOKE = "revoke"
    ROTATE = "rotate"
    PUT_ORG = "put org"
    PUT_APP = "put app"
    DELETE_APP = "delete app"
    PURGE = "purge"
    RUN_JOBS = "run jobs"


@dataclass(frozen=True)
class Secret:
    """One that somebody was told. `request`: in whose answer."""

    client_id: str
    text: str = field(repr=False)
    request: int


@dataclass(frozen=True)
class Deed:
    """`tokens`: what it showed. `whole_family`: a revocation of the refresh token, so of all. `closed`: of a use."""

    kind: Kind
    request: Request
    secret: Secret | None = None
    tokens: TokenSet | None = None
    whole_family: bool = False
    grace_hours: int | None = None
    closed: bool = True

    def __str__(self) -> str:
        return f"{self.request} from {self.request.started_ms} to {self.request.ended_ms}"


class Journal:
    """Of one world."""

    def __init__(self, world: World) -> None:
        self.deeds: dict[int, Deed] = {}
        self.secrets: list[Secret] = []
        self.held: list[TokenSet] = []
        """Received, so that anybody can show them."""
        self.first_record = 0
        """Where in the stream the setup ends."""
        self._world = world

    @property
    def issued(self) -> list[TokenSet]:
        return desks_of(self._world).issued.sets

    def fellow(self, tokens: TokenSet, random: Random) -> TokenSet:
        """One of the same client's that were received, perhaps the same."""
        client_id = tokens.access.bearer.client_id
        return random.choice([one for one in self.held if one.access.bearer.client_id == client_id][-3:])

    def of_kind(self, kind: Kind) -> list[Deed]:
        return [deed for deed in self.deeds.values() if deed.kind is kind]


def journal_of(world: World) -> Journal:
    if "journal" not in world.notes:
        world.notes["journal"] = Journal(world)
    journal: Journal = world.notes["journal"]
    return journal


class Doer:
    """One client's way to the product."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._journal = journal_of(client.world)
        self._desks: Desks = desks_of(client.world)

    @property
    def _identity(self) -> Identity:
        # Another one after a crash.
        return self._desks.of(self._client)

    def log_in(self, secret: Secret) -> None:
        request = self._do(
            f"{Kind.LOG_IN} {secret.client_id}",
            lambda request: Deed(Kind.LOG_IN, request, secret=secret),
            lambda: self._identity.logins.log_in(secret.client_id, secret.text),
        )
        self._hold(request)

    def refresh(self, tokens: TokenSet) -> None:
        request = self._do(
            f"{Kind.REFRESH} set {tokens.number}",
            lambda request: Deed(Kind.REFRESH, request, tokens=tokens),
            lambda: self._identity.logins.refresh(tokens.issued.refresh_token),
        )
        self._hold(request)

    def use(self, tokens: TokenSet, *, closed: bool) -> None:
        identity = self._identity
        before = identity.host.meter.counts[Signal.STANDING_LOOKUPS_FAILED]

        def ask() -> Outcome:
            claims = identity.tokens.read(tokens.issued.access_token, TokenType.ACCESS, identity.clock_ms())
            identity.bearers.require(claims, closed=closed)
            unknown = identity.host.meter.counts[Signal.STANDING_LOOKUPS_FAILED] > before
            return Outcome.DEGRADED if unknown else Outcome.DONE

        self._do(
            f"{Kind.USE} set {tokens.number}",
            lambda request: Deed(Kind.USE, request, tokens=tokens, closed=closed),
            ask,
        )

    def revoke(self, caller: TokenSet, tokens: TokenSet, *, whole_family: bool) -> None:
        """`caller`: of the same client; whoever asks must stand, as the routes see to."""
        named = tokens.issued.refresh_token if whole_family else tokens.issued.access_token

        def ask() -> None:
            identity = self._identity
            claims = identity.tokens.read(caller.issued.access_token, TokenType.ACCESS, identity.clock_ms())
            identity.bearers.require(claims, closed=True)
            identity.logins.revoke(claims, named)

        self._do(
            f"{Kind.REVOKE} {'family of ' if whole_family else ''}set {tokens.number}",
            lambda request: Deed(Kind.REVOKE, request, tokens=tokens, whole_family=whole_family),
            ask,
        )

    def rotate(self, org: str, app: str | None, grace_hours: int) -> None:
        def ask() -> None:
            identity, path = self._identity, OrgPath(org)
            if app is None:
                rotated = identity.orgs.rotate(path, grace_hours, author=BY_SYSTEM)
            else:
                rotated = identity.apps.rotate(path, app, grace_hours, author=BY_SYSTEM)
            self._keep(rotated.client_id, rotated.client_secret)

        self._do(
            f"{Kind.ROTATE} {app or org} for {grace_hours} h",
            lambda request: Deed(Kind.ROTATE, request, grace_hours=grace_hours),
            ask,
        )

    def put_org(self, org: str, name: str) -> None:
        def ask() -> None:
            changed = self._identity.orgs.put(OrgPath(org), OrgChange(name=name), author=BY_SYSTEM)
            if changed.client_secret is not None:
                self._keep(changed.org.client_id, changed.client_secret)

        self._do(f"{Kind.PUT_ORG} {org}", lambda request: Deed(Kind.PUT_ORG, request), ask)

    def put_app(self, org: str, app: str, name: str) -> None:
        def ask() -> None:
            changed = self._identity.apps.put(OrgPath(org), app, AppChange(name=name), author=BY_SYSTEM)
            if changed.client_secret is not None:
                self._keep(changed.app.client_id, changed.client_secret)

        self._do(f"{Kind.PUT_APP} {org} {app}", lambda request: Deed(Kind.PUT_APP, request), ask)

    def delete_app(self, org: str, app: str) -> None:
        self._do(
            f"{Kind.DELETE_APP} {org} {app}",
            lambda request: Deed(Kind.DELETE_APP, request),
            lambda: self._identity.apps.delete(OrgPath(org), app, author=BY_SYSTEM),
        )

    def purge(self, org: str) -> Request:
        return self._do(
            f"{Kind.PURGE} {org}",
            lambda request: Deed(Kind.PURGE, request),
            lambda: self._identity.orgs.delete(OrgPath(org), author=BY_SYSTEM),
        )

    def run_jobs(self) -> None:
        """A run that ends too early is the rule here, so that steps are taken again by others."""
        client = self._client

        def ask() -> None:
            run = client.host.jobs.run_open(client.host.work, lambda: client.random.random() < 0.2)
            client.world.notes.setdefault("failures", []).extend(run.failures)

        self._do(str(Kind.RUN_JOBS), lambda request: Deed(Kind.RUN_JOBS, request), ask)

    def _do(self, about: str, deed: Callable[[Request], Deed], ask: Callable[[], object]) -> Request:
        world = self._client.world
        number = len(world.history)

        def told() -> Outcome:
            self._journal.deeds[number] = deed(world.history[number])
            try:
                answer = ask()
            except Unauthorized:
                return Outcome.REFUSED
            except TURNED_AWAY:
                return Outcome.INVALID
            return answer if isinstance(answer, Outcome) else Outcome.DONE

        return self._client.attempt(about, told)

    def _hold(self, request: Request) -> None:
        if request.outcome is Outcome.DONE:
            self._journal.held.append(self._desks.issued.of(request.number))

    def _keep(self, client_id: str, secret: str) -> None:
        request = self._client.world.scheduler.cause()
        assert isinstance(request, int)
        self._journal.secrets.append(Secret(client_id, secret, request))


def set_up(world: World, identity: Identity, org: str, *apps: str) -> None:
    """In peace, before the first request. What was told then is from request -1."""
    journal = journal_of(world)
    made = identity.orgs.put(OrgPath(org), OrgChange(), author=BY_SYSTEM)
    assert made.client_secret is not None
    journal.secrets.append(Secret(made.org.client_id, made.client_secret, -1))
    for app in apps:
        of_org = identity.apps.put(OrgPath(org), app, AppChange(), author=BY_SYSTEM)
        assert of_org.client_secret is not None
        journal.secrets.append(Secret(of_org.app.client_id, of_org.client_secret, -1))
    journal.first_record = len(world.table.stream)
