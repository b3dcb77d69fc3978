"""The leases of one process, as its handler would use them."""

from collections.abc import Callable
from dataclasses import dataclass

from sluice.core.lease import LEASE_DEFAULT_MS, Lease
from sluice.repository import keys
from sluice.repository.items import Bucket, decode_bucket
from sluice.repository.leases import LeaseState, decode_lease
from sluice.services.corrections import Corrections
from sluice.services.effects import Effects
from sluice.services.leases import Leases
from sluice.shell import new_token
from tests.fakes import never_random
from tests.integration.conftest import ENTITY, NAMESPACE, RESOURCE, Host
from tests.integration.test_acquire import per_minute

TEN = {"rpm": per_minute(10)}
TWO = {"rpm": per_minute(10), "tpm": per_minute(1_000)}


@dataclass
class Desk:
    host: Host
    leases: Leases
    start_host: Callable[[], Host]

    @classmethod
    def opened(cls, start_host: Callable[[], Host]) -> "Desk":
        host = start_host()
        effects = Effects(host.clock, never_random, new_token, host.meter)
        return cls(host, Leases(host.store, Corrections(host.store, host.taker), effects), start_host)

    def elsewhere(self) -> "Desk":
        """Another process: it has seen neither the bucket nor the lease."""
        return Desk.opened(self.start_host)

    def take(self, ttl_ms: int = LEASE_DEFAULT_MS, entity: str = ENTITY, **consume: int) -> Lease:
        return self.leases.open(self.host.ask(consume, entity=entity), ttl_ms)

    def state(self, lease: Lease) -> LeaseState | None:
        item = self.host.store.inner.get(keys.lease(NAMESPACE, lease.lease_id), consistent=True)
        return None if item is None else decode_lease(item)

    def left_out(self, lease: Lease) -> frozenset[str]:
        state = self.state(lease)
        assert state is not None
        return state.left_out

    def bucket(self, entity: str = ENTITY, shard: int = 0) -> Bucket:
        item = self.host.store.inner.get(keys.bucket(NAMESPACE, entity, RESOURCE, shard), consistent=True)
        assert item is not None
        return decode_bucket(item)

    def delete(self, bucket: Bucket) -> None:
        self.host.store.inner.delete({"Key": dict(bucket.key.attributes)})
