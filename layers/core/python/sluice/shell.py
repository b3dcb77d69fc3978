"""The outermost shell: environment, clients, logger and metrics, each made once per process.

Everything below gets what it needs as an argument; nothing else reads the environment, the clock or randomness.
"""

import os
import secrets
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit
from botocore.exceptions import BotoCoreError, ClientError

from sluice.clients import alert_bus, bounded_client, inference_profiles, price_list, table_client
from sluice.core.admission import CHAIN_MAX
from sluice.core.errors import SigningUnavailable
from sluice.core.signals import METRICS_NAMESPACE, Meter, Signal
from sluice.money import Foundations, Money, build_money
from sluice.repository.archive import S3Archive
from sluice.repository.retries import Retries
from sluice.repository.secret_ages import SecretDates
from sluice.repository.store import DynamoStore, Store
from sluice.services.acquire import Acquire, Task
from sluice.services.apps import Apps
from sluice.services.archiving import Archiving
from sluice.services.bearers import Bearers
from sluice.services.bucket_lists import BucketLists
from sluice.services.chains import Chains
from sluice.services.claims import Taken
from sluice.services.client_secrets import ClientSecrets
from sluice.services.configuration import Configuration
from sluice.services.confinement import Confinement
from sluice.services.corrections import Corrections
from sluice.services.counting import Counting
from sluice.services.credentials import Credentials
from sluice.services.cursors import Cursors
from sluice.services.daily import MERGE_SHARDS, Daily, MergeShards
from sluice.services.effects import Effects
from sluice.services.entities import Entities
from sluice.services.explain import Explain
from sluice.services.freeing import Freeing
from sluice.services.growth import Growth
from sluice.services.hold_book import HoldBook
from sluice.services.hold_explain import HoldExplain
from sluice.services.holding import Allowances, Holding
from sluice.services.idempotency import IdempotentAcquire
from sluice.services.job_lists import JobLists
from sluice.services.jobs import Jobs, Work
from sluice.services.leases import Leases
from sluice.services.ledger_book import LedgerBook
from sluice.services.limits import Limits
from sluice.services.listing import Lists
from sluice.services.logins import Logins
from sluice.services.migration import MIGRATION, Migrate, Migrations
from sluice.services.namespaces import Namespaces
from sluice.services.operators import Operators
from sluice.services.orgs import Orgs
from sluice.services.price_refresh import REFRESH_PRICES, RefreshPrices
from sluice.services.purge import PURGE, Purge
from sluice.services.registration import Registrar
from sluice.services.rollup_jobs import SUM_TOTALS
from sluice.services.secret_ages import SecretAges
from sluice.services.settings import SettingsCache
from sluice.services.sharding import Sharding
from sluice.services.shipped_prices import ShippedPrices
from sluice.services.signing import KeySource, Signer, SigningKeys, parse_keys
from sluice.services.taking import build_buckets
from sluice.services.together import Together
from sluice.services.tokens import Tokens
from sluice.services.usage import Usage
from sluice.timer import Timer

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

# A new key signs within this time in every process; a token that none of the known keys signed has them read sooner.
KEYS_MS: Final = 300_000
KEYS_LOOKED_UP_MS: Final = 10_000

# From the operating system: a restored snapshot would repeat any other.
_random_below: Final = secrets.randbelow

# Started by the first chain, so that no thread is part of a snapshot.
_threads: Final = ThreadPoolExecutor(max_workers=CHAIN_MAX, thread_name_prefix="chain")

logger = Logger()
metrics = Metrics(namespace=METRICS_NAMESPACE)


@dataclass(frozen=True, slots=True)
class Environment:
    """Every setting that a function reads. A secret is the ARN of two keys; None for a process that does not use it.

    `signing_secret`: of leases and cursors. `token_secret`: of callers' tokens. `operator_secret`: what an operator
    shows. `credentials_secret`: of the hashes of clients' secrets. `aged_secrets`: those whose age is watched.
    `alert_topic`: where alerts are told; None for a process that tells of none.
    `pricing_region`: where AWS's price list is asked; None for a process, or an environment, that does not ask.
    """

    name: str
    table: str
    store_timeout_ms: int
    signing_secret: str | None = None
    token_secret: str | None = None
    operator_secret: str | None = None
    credentials_secret: str | None = None
    archive_bucket: str | None = None
    aged_secrets: tuple[str, ...] = ()
    pricing_region: str | None = None
    alert_topic: str | None = None

    @property
    def has_secrets(self) -> bool:
        keys = (self.signing_secret, self.token_secret, self.operator_secret, self.credentials_secret)
        return bool(self.aged_secrets) or any(keys)

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> "Environment":
        return cls(
            name=variables["SLUICE_ENVIRONMENT"],
            table=variables["SLUICE_TABLE"],
            store_timeout_ms=int(variables.get("SLUICE_STORE_TIMEOUT_MS", "2000")),
            signing_secret=variables.get("SLUICE_SIGNING_SECRET") or None,
            token_secret=variables.get("SLUICE_TOKEN_SECRET") or None,
            operator_secret=variables.get("SLUICE_OPERATOR_SECRET") or None,
            credentials_secret=variables.get("SLUICE_CREDENTIALS_SECRET") or None,
            archive_bucket=variables.get("SLUICE_ARCHIVE_BUCKET") or None,
            aged_secrets=tuple(filter(None, variables.get("SLUICE_AGED_SECRETS", "").split(","))),
            pricing_region=variables.get("SLUICE_PRICING_REGION") or None,
            alert_topic=variables.get("SLUICE_ALERT_TOPIC") or None,
        )


def process_environment() -> Environment:
    return Environment.read(os.environ)


@dataclass(frozen=True, slots=True)
class Services:
    """What a handler may call. `work`: what the jobs of each kind do. `archiving`: None without a bucket."""

    acquire: Acquire
    idempotent_acquire: IdempotentAcquire
    explain: Explain
    apps: Apps
    archiving: Archiving | None
    bearers: Bearers
    bucket_lists: BucketLists
    configuration: Configuration
    confinement: Confinement
    counting: Counting
    credentials: Credentials
    daily: Daily
    entities: Entities
    growth: Growth
    hold_explain: HoldExplain
    holding: Holding
    job_lists: JobLists
    jobs: Jobs
    leases: Leases
    limits: Limits
    lists: Lists
    logins: Logins
    money: Money
    migrations: Migrations
    namespaces: Namespaces
    operators: Operators
    orgs: Orgs
    secret_ages: SecretAges
    sharding: Sharding
    signer: Signer
    store: Store
    tokens: Tokens
    usage: Usage
    work: Mapping[str, Work]


class SecretKeys:
    """The two keys of a secret, read when they are first needed: a snapshot must not carry them.

    While the secret can not be read, the keys that were read last go on.
    """

    def __init__(self, secret: str, client: Any) -> None:
        self._client = client
        self._secret = secret
        self._lock = Lock()
        self._keys: SigningKeys | None = None
        self._asked_ms = 0

    def known(self) -> SigningKeys:
        return self._not_older_than(KEYS_MS)

    def looked_up(self) -> SigningKeys:
        """Past the cache, but never once per forged token."""
        return self._not_older_than(KEYS_LOOKED_UP_MS)

    def _not_older_than(self, age_ms: int) -> SigningKeys:
        with self._lock:
            now_ms = timer_ms()
            if self._keys is None or now_ms - self._asked_ms >= age_ms:
                self._asked_ms = now_ms
                self._keys = self._read() or self._keys
            if self._keys is None:
                raise SigningUnavailable("the keys of this service can not be read")
            return self._keys

    def _read(self) -> SigningKeys | None:
        try:
            return parse_keys(self._client.get_secret_value(SecretId=self._secret)["SecretString"])
        except (BotoCoreError, ClientError, ValueError, KeyError) as error:
            # Only the type: what is wrong with a secret may be in the message.
            logger.error("the keys of a secret can not be read", extra={"reason": type(error).__name__})  # noqa: TRY400
            return None


class NoKeys:
    """For a process that was given no secret."""

    def known(self) -> SigningKeys:
        raise LookupError("this process was given no secret")

    looked_up = known


class PowertoolsMeter:
    """Signals as CloudWatch metrics, in the log line format that costs no call.

    By environment and service: environments that share an account must not share an alarm.
    """

    def __init__(self, environment: Environment) -> None:
        metrics.set_default_dimensions(environment=environment.name)

    def count(self, signal: Signal, amount: int = 1) -> None:
        metrics.add_metric(name=signal.value, unit=MetricUnit.Count, value=amount)


def make_client(environment: Environment) -> "DynamoDBClient":
    return table_client(environment.store_timeout_ms)


def build_services(environment: Environment, client: "DynamoDBClient", meter: Meter) -> Services:
    store = DynamoStore(client, environment.table, Retries(_sleep_ms, _random_below, meter))
    configuration = Configuration(store, timer_ms, meter)
    effects = Effects(clock_ms, _random_below, new_token, meter)
    buckets = build_buckets(store, configuration, effects, timer_ms)
    registrar = Registrar(store, configuration, effects)
    chains = Chains(configuration, buckets.memory.images, registrar)
    settings = SettingsCache(store, timer_ms)
    book = LedgerBook(store, settings, effects, timer_ms, configuration.budget_defaults)
    hold_book = HoldBook(store)
    leases = Leases(store, Corrections(store, buckets.taker), effects, Freeing(hold_book, book, effects))
    jobs = Jobs(store, effects)
    # One for all of them: making a client costs more CPU than a request.
    secrets_client = _secrets_client(environment)
    signer = Signer(_key_source(environment.signing_secret, secrets_client))
    cursors = Cursors(signer)
    acquire = Acquire(configuration, chains, buckets.taker, run_all, meter)
    together = Together(store, buckets, effects)
    client_secrets = ClientSecrets(_key_source(environment.credentials_secret, secrets_client), _random_below)
    credentials = Credentials(store, client_secrets, effects)
    tokens = Tokens(
        _key_source(environment.token_secret, secrets_client), f"sluice-{environment.name}", new_token, meter
    )
    lists = Lists(store, cursors)
    namespaces = Namespaces(store, jobs, effects, timer_ms)
    orgs = Orgs(store, namespaces, credentials, configuration, effects)
    archive = _archive(environment)
    profile_source = inference_profiles(environment.store_timeout_ms)
    foundations = Foundations(
        profile_source,
        registrar,
        leases,
        lists,
        cursors,
        jobs,
        namespaces,
        configuration,
        settings,
        book,
        hold_book,
        None if environment.alert_topic is None else alert_bus(environment.alert_topic, environment.store_timeout_ms),
    )
    money = build_money(store, effects, timer_ms, foundations)
    explain = Explain(chains, buckets.writer, clock_ms)
    idempotent = IdempotentAcquire(store, acquire, chains, together, effects)
    allowances = Allowances(book, hold_book, money.reserves, settings, money.alerts)
    return Services(
        acquire=acquire,
        apps=Apps(store, orgs, credentials, lists, configuration, effects),
        archiving=None if archive is None else Archiving(archive, namespaces, meter),
        bearers=Bearers(store, timer_ms, meter),
        bucket_lists=BucketLists(store, cursors, clock_ms),
        configuration=configuration,
        confinement=Confinement(store),
        counting=Counting(store, namespaces, effects),
        credentials=credentials,
        daily=Daily(jobs, effects, _due_daily(environment)),
        explain=explain,
        hold_explain=HoldExplain(store, explain, chains, allowances),
        holding=Holding(acquire, idempotent, chains, together, allowances, effects, timer_ms),
        idempotent_acquire=idempotent,
        entities=Entities(store, configuration, clock_ms, _random_below, new_token),
        growth=Growth(store, buckets.writer, buckets.sharding, namespaces, effects),
        job_lists=JobLists(jobs, cursors),
        jobs=jobs,
        leases=leases,
        limits=Limits(store, configuration, clock_ms, _random_below, new_token),
        lists=lists,
        logins=Logins(store, credentials, client_secrets, tokens, acquire, effects),
        money=money,
        migrations=Migrations(store, jobs, effects),
        namespaces=namespaces,
        operators=Operators(_key_source(environment.operator_secret, secrets_client)),
        orgs=orgs,
        secret_ages=SecretAges(environment.aged_secrets, SecretDates(secrets_client), effects, timer_ms),
        sharding=buckets.sharding,
        signer=signer,
        store=store,
        tokens=tokens,
        usage=Usage(store, lists, cursors, clock_ms),
        work={
            MERGE_SHARDS: MergeShards(store, buckets.sharding),
            MIGRATION: Migrate(store, buckets.legacy, effects),
            PURGE: Purge(store, effects, archive),
            **money.work,
            **_refreshing(store, environment, effects),
        },
    )


def _due_daily(environment: Environment) -> dict[str, str]:
    """By how the ids of its jobs begin."""
    prices = {} if environment.pricing_region is None else {"prices": REFRESH_PRICES}
    return {"merge": MERGE_SHARDS, "totals": SUM_TOTALS, **prices}


def _refreshing(store: Store, environment: Environment, effects: Effects) -> dict[str, Work]:
    """Nothing where the price list is not asked: no other process takes that kind up either."""
    region = environment.pricing_region
    return (
        {} if region is None else {REFRESH_PRICES: RefreshPrices(store, price_list(region), ShippedPrices(), effects)}
    )


def _archive(environment: Environment) -> S3Archive | None:
    bucket = environment.archive_bucket
    return None if bucket is None else S3Archive(bounded_client("s3", environment.store_timeout_ms), bucket)


def _secrets_client(environment: Environment) -> Any:
    return bounded_client("secretsmanager", environment.store_timeout_ms) if environment.has_secrets else None


def _key_source(secret: str | None, client: Any) -> KeySource:
    return NoKeys() if secret is None else SecretKeys(secret, client)


def run_all(tasks: Sequence[Task]) -> list[Taken | Exception]:
    """At once, in threads: the members of a chain wait for the network, not for each other."""
    futures = [_threads.submit(task) for task in tasks]
    outcomes: list[Taken | Exception] = []
    for future in futures:
        error = future.exception()
        if error is None:
            outcomes.append(future.result())
        elif isinstance(error, Exception):
            outcomes.append(error)
        else:
            raise error
    return outcomes


def new_token() -> str:
    """Names one transaction. DynamoDB takes 36 characters at most."""
    return secrets.token_hex(16)


def clock_ms() -> int:
    return time.time_ns() // 1_000_000


timer_ms: Final = Timer()


def _sleep_ms(duration_ms: int) -> None:
    time.sleep(duration_ms / 1000)
