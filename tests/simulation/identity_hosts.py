"""Identity on a simulated host: the product's services with caches of their own, as `shell.py` builds them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sluice.core.identity import Bearer, Claims
from sluice.services.apps import Apps
from sluice.services.bearers import Bearers
from sluice.services.client_secrets import ClientSecrets
from sluice.services.credentials import Credentials
from sluice.services.cursors import Cursors
from sluice.services.effects import Effects
from sluice.services.listing import Lists
from sluice.services.logins import Logins
from sluice.services.orgs import Orgs
from sluice.services.signing import Signer, SigningKeys
from sluice.services.tokens import IssuedTokens, Tokens
from tests.simulation.scheduler import Process
from tests.simulation.world import Client, Host, World

KEYS_MS: Final = 300_000
ISSUER: Final = "sluice-simulated"


class StoredKeys:
    """The keys as they are in the secret."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._turns = 0
        self.keys = SigningKeys(self._key())

    def turn(self) -> None:
        self._turns += 1
        self.keys = SigningKeys(self._key(), self.keys.current)

    def _key(self) -> bytes:
        return f"{self._name} {self._turns}".encode().ljust(64, b".")


class ReadKeys:
    """The keys as a process has them: a new one is noticed late, or when something was made with it."""

    def __init__(self, stored: StoredKeys, timer_ms: Callable[[], int]) -> None:
        self._stored = stored
        self._timer_ms = timer_ms
        self._keys = stored.keys
        self._read_ms = timer_ms()

    def known(self) -> SigningKeys:
        return self._keys if self._timer_ms() - self._read_ms < KEYS_MS else self.looked_up()

    def looked_up(self) -> SigningKeys:
        self._keys, self._read_ms = self._stored.keys, self._timer_ms()
        return self._keys


@dataclass(frozen=True)
class TokenSet:
    """What one answer gives out. `request`: whose answer; it may be lost. `number`: in the order of issue."""

    number: int
    request: int
    issued: IssuedTokens
    access: Claims
    refresh: Claims


class IssuedSets:
    """All that was ever issued, also where nobody received it."""

    def __init__(self, world: World) -> None:
        self.sets: list[TokenSet] = []
        self._world = world

    def add(self, tokens: Tokens, issued: IssuedTokens, now_ms: int) -> None:
        access, refresh = (tokens.find(one, now_ms) for one in (issued.access_token, issued.refresh_token))
        assert access is not None
        assert refresh is not None
        request = self._world.scheduler.cause()
        assert isinstance(request, int)
        self.sets.append(TokenSet(len(self.sets), request, issued, access, refresh))

    def of(self, request: int) -> TokenSet:
        (found,) = (one for one in self.sets if one.request == request)
        return found


class WitnessedTokens(Tokens):
    """Tells what it issues."""

    witness: IssuedSets | None = None

    def issue(self, bearer: Bearer, family: str | None, now_ms: int) -> IssuedTokens:
        issued = super().issue(bearer, family, now_ms)
        if self.witness is not None:
            self.witness.add(self, issued, now_ms)
        return issued


@dataclass(frozen=True)
class Identity:
    """What the routes of identity call, in one process."""

    host: Host
    tokens: Tokens
    bearers: Bearers
    logins: Logins
    orgs: Orgs
    apps: Apps
    clock_ms: Callable[[], int]


class Desks:
    """The identity of every process, made when it is first asked for. Kept in the notes of its world."""

    def __init__(self, world: World) -> None:
        self.token_keys = StoredKeys("token")
        self.credential_keys = StoredKeys("credentials")
        self.issued = IssuedSets(world)
        self._world = world
        self._made: dict[Process, Identity] = {}

    def of(self, client: Client) -> Identity:
        process = client.host.process
        if process not in self._made:
            self._made[process] = self.at(client.host, client.clock_ms, self.issued)
        return self._made[process]

    def at(self, host: Host, clock_ms: Callable[[], int], witness: IssuedSets | None = None) -> Identity:
        world = self._world
        timer_ms = world.scheduler.clock_ms
        effects = Effects(clock_ms, world.random_below, world.new_token, host.meter)
        token_keys = ReadKeys(self.token_keys, timer_ms)
        client_secrets = ClientSecrets(ReadKeys(self.credential_keys, timer_ms), world.random_below)
        credentials = Credentials(host.store, client_secrets, effects)
        tokens = WitnessedTokens(token_keys, ISSUER, world.new_token, host.meter)
        tokens.witness = witness
        orgs = Orgs(host.store, host.namespaces, credentials, host.configuration, effects)
        lists = Lists(host.store, Cursors(Signer(token_keys)))
        return Identity(
            host=host,
            tokens=tokens,
            bearers=Bearers(host.store, timer_ms, host.meter),
            logins=Logins(host.store, credentials, client_secrets, tokens, host.acquire, effects),
            orgs=orgs,
            apps=Apps(host.store, orgs, credentials, lists, host.configuration, effects),
            clock_ms=clock_ms,
        )


def desks_of(world: World) -> Desks:
    if "desks" not in world.notes:
        world.notes["desks"] = Desks(world)
    desks: Desks = world.notes["desks"]
    return desks
