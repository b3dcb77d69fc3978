"""Identity in one process, on any store, in a time and with a chance that a test rules."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.audit import Author
from sluice.core.identity import Claims, Role, TokenType
from sluice.core.orgs import AppSettings, OrgSettings
from sluice.repository import keys
from sluice.repository.namespaces import Namespace, NamespaceState, create_writes, purge_writes
from sluice.repository.orgs import App, Org, app_put, decode_app, decode_org, org_put
from sluice.repository.requests import TransactWrite
from sluice.repository.retries import Retries
from sluice.repository.store import Committed, DynamoStore, Store
from sluice.services.acquire import Acquire, Task
from sluice.services.bearers import Bearers
from sluice.services.chains import Chains
from sluice.services.claims import Taken
from sluice.services.client_secrets import ClientSecrets
from sluice.services.configuration import Configuration
from sluice.services.credentials import Credentials
from sluice.services.effects import Effects
from sluice.services.logins import Logins
from sluice.services.registration import Registrar
from sluice.services.signing import SigningKeys
from sluice.services.taking import build_buckets
from sluice.services.tokens import IssuedTokens, Tokens
from sluice.shell import new_token
from tests.fakes import CountingMeter, FakeClock
from tests.recording import RecordingStore
from tests.simulation.store import PerfectWire, SimulatedStore
from tests.simulation.table import SimulatedTable

ISSUER = "sluice-test"
PLAIN = OrgSettings()
AUTHOR = Author("operator", "request-7")
HOUR_MS = 3600 * 1000


class TurningKeys:
    """Keys that a test rotates. `look_ups`: how often somebody asked past what is known."""

    def __init__(self, current: bytes, previous: bytes | None = None) -> None:
        self.keys = SigningKeys(current, previous)
        self.stored = self.keys
        self.look_ups = 0

    def known(self) -> SigningKeys:
        return self.keys

    def looked_up(self) -> SigningKeys:
        self.look_ups += 1
        self.keys = self.stored
        return self.keys

    def rotate(self, new: bytes) -> None:
        """In the secret; a process learns of it later."""
        self.stored = SigningKeys(new, self.stored.current)


@dataclass(frozen=True)
class Credential:
    client_id: str
    client_secret: str


class Desk:
    """One process: its own caches; the table, the clock and the keys may be shared with others."""

    def __init__(
        self,
        store: Store,
        clock: FakeClock,
        seed: int = 7,
        token_keys: TurningKeys | None = None,
        credential_keys: TurningKeys | None = None,
        issuer: str = ISSUER,
    ) -> None:
        random = Random(seed)
        self.clock = clock
        self.meter = CountingMeter()
        self.store = RecordingStore(store)
        self.token_keys = token_keys or TurningKeys(b"t" * 64)
        self.credential_keys = credential_keys or TurningKeys(b"c" * 64)
        # Tests share an engine, and it remembers the tokens of transactions.
        effects = Effects(clock, random.randrange, new_token, self.meter)
        configuration = Configuration(self.store, clock)
        buckets = build_buckets(self.store, configuration, effects, clock)
        chains = Chains(configuration, buckets.memory.images, Registrar(self.store, configuration, effects))
        acquire = Acquire(configuration, chains, buckets.taker, _no_chains, self.meter)
        self.client_secrets = ClientSecrets(self.credential_keys, effects.random_below)
        self.credentials = Credentials(self.store, self.client_secrets, effects)
        self.tokens = Tokens(self.token_keys, issuer, effects.new_token, self.meter)
        self.bearers = Bearers(self.store, clock, self.meter)
        self.logins = Logins(self.store, self.credentials, self.client_secrets, self.tokens, acquire, effects)
        self.effects = effects

    def make_org(self, org: str = "acme", namespace: str = "ns", settings: OrgSettings = PLAIN) -> Credential:
        now_ms = self.clock.now_ms
        registered = Namespace(org, namespace, NamespaceState.ACTIVE, None, now_ms, now_ms)
        made = self.credentials.create(namespace, org, Role.ORG, now_ms)
        stored = Org(org, namespace, made.client_id, settings, 1, now_ms, now_ms)
        outcome = self.store.inner.transact(
            [*create_writes(registered), org_put(stored, None), *made.writes], self.effects.new_token()
        )
        assert isinstance(outcome, Committed)
        return Credential(made.client_id, made.client_secret)

    def make_app(self, app: str = "chat", namespace: str = "ns") -> Credential:
        now_ms = self.clock.now_ms
        made = self.credentials.create(namespace, app, Role.APP, now_ms)
        stored = App(app, namespace, made.client_id, AppSettings(), 1, now_ms, now_ms)
        outcome = self.store.inner.transact([app_put(stored, None), *made.writes], self.effects.new_token())
        assert isinstance(outcome, Committed)
        return Credential(made.client_id, made.client_secret)

    def suspend_org(self, namespace: str = "ns", *, suspended: bool = True) -> None:
        item = self.store.inner.get(keys.org_settings(namespace), consistent=True)
        assert item is not None
        seen = decode_org(item)
        after = replace(seen, settings=replace(seen.settings, suspended=suspended), version=seen.version + 1)
        self.send(org_put(after, seen))

    def suspend_app(self, app: str = "chat", namespace: str = "ns") -> None:
        item = self.store.inner.get(keys.app_settings(namespace, app), consistent=True)
        assert item is not None
        seen = decode_app(item)
        self.send(app_put(replace(seen, settings=AppSettings(suspended=True), version=seen.version + 1), seen))

    def start_purge(self, org: str = "acme", namespace: str = "ns") -> None:
        registered = Namespace(org, namespace, NamespaceState.ACTIVE, None, 0, 0)
        self.send(*purge_writes(registered, "job-1", self.clock.now_ms))

    def send(self, *writes: TransactWrite) -> None:
        outcome = self.store.inner.transact(list(writes), self.effects.new_token())
        assert isinstance(outcome, Committed)

    def log_in(self, credential: Credential) -> IssuedTokens:
        return self.logins.log_in(credential.client_id, credential.client_secret)

    def rotate(self, client_id: str, grace_hours: int) -> Credential:
        rotated = self.credentials.rotate(client_id, "acme", grace_hours, AUTHOR)
        return Credential(client_id, rotated.client_secret)

    def claims(self, token: str, token_type: TokenType = TokenType.ACCESS) -> Claims:
        return self.tokens.read(token, token_type, self.clock.now_ms)

    def use(self, access_token: str, *, closed: bool = True) -> Claims:
        """As the edge does it."""
        claims = self.claims(access_token)
        self.bearers.require(claims, closed=closed)
        return claims

    def other_process(self, seed: int) -> "Desk":
        return Desk(self.store.inner, self.clock, seed, self.token_keys, self.credential_keys)


def simulated_desk(seed: int = 7) -> tuple[Desk, SimulatedTable]:
    """On a table in memory."""
    clock = FakeClock()
    table = SimulatedTable(clock)
    retries = Retries(clock.advance, lambda _below: 0, CountingMeter())
    return Desk(SimulatedStore(table, PerfectWire(), retries), clock, seed), table


def engine_desk(dynamodb: DynamoDBClient, table: str, clock: FakeClock) -> Desk:
    return Desk(DynamoStore(dynamodb, table, Retries(lambda _ms: None, lambda _below: 0, CountingMeter())), clock)


def at_the(verb: str, desk: Desk, act: Callable[[], object]) -> None:
    """Once, in the moment before the next such call is sent."""

    def before(called: str, _request: object) -> None:
        if called == verb:
            desk.store.before = None
            act()

    desk.store.before = before


def _no_chains(_tasks: Sequence[Task]) -> list[Taken | Exception]:
    raise AssertionError("a login takes from one bucket")
