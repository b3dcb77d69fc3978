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
from typing import TYPE_CHECKING, Final

import boto3
from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from sluice.core.admission import CHAIN_MAX
from sluice.core.errors import SigningUnavailable
from sluice.core.signals import METRICS_NAMESPACE, Meter, Signal
from sluice.repository.retries import Retries
from sluice.repository.store import DynamoStore, Store
from sluice.services.acquire import Acquire, Task
from sluice.services.bucket_lists import BucketLists
from sluice.services.chains import Chains
from sluice.services.claims import Taken
from sluice.services.configuration import Configuration
from sluice.services.corrections import Corrections
from sluice.services.cursors import Cursors
from sluice.services.daily import MERGE_SHARDS, Daily, MergeShards
from sluice.services.effects import Effects
from sluice.services.entities import Entities
from sluice.services.explain import Explain
from sluice.services.idempotency import IdempotentAcquire
from sluice.services.job_lists import JobLists
from sluice.services.jobs import Jobs, Work
from sluice.services.leases import Leases
from sluice.services.limits import Limits
from sluice.services.listing import Lists
from sluice.services.migration import MIGRATION, Migrate, Migrations
from sluice.services.namespaces import Namespaces
from sluice.services.purge import PURGE, Purge
from sluice.services.registration import Registrar
from sluice.services.sharding import Sharding
from sluice.services.signing import KeySource, Signer, SigningKeys, parse_keys
from sluice.services.taking import build_buckets
from sluice.services.together import Together

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

CONNECT_TIMEOUT_S: Final = 1
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
    """Every setting that a function reads. `open_namespace`: who callers without a login are, if allowed.

    `signing_secret`: the ARN of the secret with the signing keys; None for a process that hands out no tokens.
    """

    name: str
    table: str
    store_timeout_ms: int
    open_namespace: str | None
    signing_secret: str | None = None

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> "Environment":
        return cls(
            name=variables["SLUICE_ENVIRONMENT"],
            table=variables["SLUICE_TABLE"],
            store_timeout_ms=int(variables.get("SLUICE_STORE_TIMEOUT_MS", "2000")),
            open_namespace=variables.get("SLUICE_OPEN_NAMESPACE") or None,
            signing_secret=variables.get("SLUICE_SIGNING_SECRET") or None,
        )


def process_environment() -> Environment:
    return Environment.read(os.environ)


@dataclass(frozen=True, slots=True)
class Services:
    """What a handler may call. `work`: what the jobs of each kind do."""

    acquire: Acquire
    idempotent_acquire: IdempotentAcquire
    explain: Explain
    bucket_lists: BucketLists
    configuration: Configuration
    daily: Daily
    entities: Entities
    job_lists: JobLists
    jobs: Jobs
    leases: Leases
    limits: Limits
    lists: Lists
    migrations: Migrations
    namespaces: Namespaces
    sharding: Sharding
    signer: Signer
    store: Store
    work: Mapping[str, Work]


class SecretKeys:
    """The signing keys of a secret, read when they are first needed: a snapshot must not carry them.

    While the secret can not be read, the keys that were read last go on.
    """

    def __init__(self, secret: str, timeout_ms: int) -> None:
        config = Config(
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=timeout_ms / 1000,
            retries={"total_max_attempts": 2, "mode": "standard"},
        )
        self._client = boto3.client("secretsmanager", config=config)
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
                raise SigningUnavailable("the signing keys can not be read")
            return self._keys

    def _read(self) -> SigningKeys | None:
        try:
            return parse_keys(self._client.get_secret_value(SecretId=self._secret)["SecretString"])
        except (BotoCoreError, ClientError, ValueError, KeyError) as error:
            # Only the type: what is wrong with a secret may be in the message.
            logger.error("the signing keys can not be read", extra={"reason": type(error).__name__})  # noqa: TRY400
            return None


class NoKeys:
    """For a process that was given no secret."""

    def known(self) -> SigningKeys:
        raise LookupError("SLUICE_SIGNING_SECRET is not set")

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
    """One attempt per call: `repository/retries.py` decides what may be sent again."""
    return boto3.client(
        "dynamodb",
        config=Config(
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=environment.store_timeout_ms / 1000,
            retries={"total_max_attempts": 1, "mode": "standard"},
            tcp_keepalive=True,
        ),
    )


def build_services(environment: Environment, client: "DynamoDBClient", meter: Meter) -> Services:
    store = DynamoStore(client, environment.table, Retries(_sleep_ms, _random_below, meter))
    configuration = Configuration(store, timer_ms, meter)
    effects = Effects(clock_ms, _random_below, new_token, meter)
    buckets = build_buckets(store, configuration, effects, timer_ms)
    chains = Chains(configuration, buckets.memory.images, Registrar(store, configuration, effects))
    jobs = Jobs(store, effects)
    signer = Signer(_key_source(environment))
    cursors = Cursors(signer)
    acquire = Acquire(configuration, chains, buckets.taker, run_all, meter)
    together = Together(store, buckets, effects)
    return Services(
        acquire=acquire,
        bucket_lists=BucketLists(store, cursors, clock_ms),
        configuration=configuration,
        daily=Daily(jobs, effects),
        explain=Explain(chains, buckets.writer, clock_ms),
        idempotent_acquire=IdempotentAcquire(store, acquire, chains, together, effects),
        entities=Entities(store, configuration, clock_ms, _random_below, new_token),
        job_lists=JobLists(jobs, cursors),
        jobs=jobs,
        leases=Leases(store, Corrections(store, buckets.taker), effects),
        limits=Limits(store, configuration, clock_ms, _random_below, new_token),
        lists=Lists(store, cursors),
        migrations=Migrations(store, jobs, effects),
        namespaces=Namespaces(store, jobs, effects, timer_ms),
        sharding=buckets.sharding,
        signer=signer,
        store=store,
        work={
            MERGE_SHARDS: MergeShards(store, buckets.sharding),
            MIGRATION: Migrate(store, buckets.legacy, effects),
            PURGE: Purge(store, effects),
        },
    )


def _key_source(environment: Environment) -> KeySource:
    secret = environment.signing_secret
    return NoKeys() if secret is None else SecretKeys(secret, environment.store_timeout_ms)


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


def timer_ms() -> int:
    """For what lives so and so long: it never runs backwards."""
    return time.monotonic_ns() // 1_000_000


def _sleep_ms(duration_ms: int) -> None:
    time.sleep(duration_ms / 1000)
