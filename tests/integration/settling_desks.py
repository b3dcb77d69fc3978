"""Leases of real buckets beside a desk that counts usage, and what became of all of it."""

from dataclasses import replace
from typing import Any, Final

from sluice.core.lease import Lease
from sluice.core.limits import Limit
from sluice.repository import keys, writes
from sluice.repository.items import Bucket, BucketLimit, decode_bucket
from sluice.repository.keys import Key
from sluice.repository.ledger_items import encode_ledger
from sluice.services.judging import Reporter
from sluice.services.settling import Settled, Settling
from tests.integration.ledger_desks import ledger_of
from tests.integration.metering_desks import APP, AS_APP, NAMESPACE, MeteringDesk, lease_of, report

RESOURCE: Final = "gpt-4"
# So slow that a test sees none of it.
TPM: Final = Limit(1_000, 1_000, 1, 31_536_000)
TAKEN_MILLI: Final = 500_000


def bucket_key(entity: str = APP, shard: int = 0) -> Key:
    return keys.bucket(NAMESPACE, entity, RESOURCE, shard, None)


def put_bucket(
    desk: MeteringDesk, entity: str = APP, shard: int = 0, count: int = 1, taken_milli: int = TAKEN_MILLI
) -> None:
    """As an acquire of the lease that `lease_of` makes has left it."""
    now_ms = desk.clock.now_ms
    parameters = TPM.parameters
    top_milli = parameters.burst_milli - now_ms * parameters.refill_amount_milli // parameters.refill_period_ms
    bucket = Bucket(
        key=bucket_key(entity, shard),
        namespace=NAMESPACE,
        entity=entity,
        resource=RESOURCE,
        call_fingerprint=None,
        shard=shard,
        shard_count=count,
        version=1,
        generation=7,
        limits_hash=f"hash:{count}",
        cascade=False,
        parent=None,
        expires_at_s=None,
        created_at_ms=now_ms,
        limits={"tpm": BucketLimit(parameters, top_milli - taken_milli, taken_milli)},
        retired_consumed_milli={},
    )
    desk.store.inner.put(writes.create(bucket), repeatable=True)


def taken(desk: MeteringDesk, ttl_ms: int = 300_000) -> Lease:
    put_bucket(desk)
    return lease_of(desk.clock, ttl_ms=ttl_ms)


def consumed(desk: MeteringDesk, entity: str = APP, shard: int = 0) -> int:
    """In whole tokens."""
    item = desk.store.inner.get(bucket_key(entity, shard), consistent=True)
    assert item is not None
    return decode_bucket(item).limits["tpm"].consumed_milli // 1000


def settle(
    desk: MeteringDesk, lease: Lease, tpm: int | None = 200, reporter: Reporter = AS_APP, **changed: object
) -> Settled:
    """`tpm`: None leaves the limit out."""
    actual = {} if tpm is None else {"tpm": tpm}
    return Settling(desk.leases, desk.metering).settle(lease, actual, reporter, report(**changed))


def revise_ledger(desk: MeteringDesk) -> None:
    """Somebody else refreshes it."""
    ledger = ledger_of(desk.store.inner)
    changed = replace(ledger, epoch=ledger.epoch + 1)
    desk.store.inner.put({"Item": encode_ledger(changed)}, repeatable=True)


def everything(desk: MeteringDesk) -> list[str]:
    """The whole table, to tell that nothing changed."""
    found: list[Any] = []
    start = None
    while True:
        page = desk.store.inner.scan({"ConsistentRead": True, **({"ExclusiveStartKey": start} if start else {})})
        found += page.items
        start = page.next_start
        if start is None:
            return sorted(str(sorted(item.items())) for item in found)
