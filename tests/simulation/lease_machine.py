"""The whole model: the steps of `machine.py`, and leases that are taken, corrected and closed by either process."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    multiple,
    rule,
)

from sluice.core.admission import Admission
from sluice.core.errors import (
    IdempotencyMismatch,
    InvalidRequest,
    LeaseClosed,
    LeaseExpired,
)
from sluice.core.lease import Lease
from sluice.services.chains import AcquireRequest
from tests.simulation.exact import MILLI
from tests.simulation.machine import BucketSteps
from tests.simulation.model import NAMESPACE, RESOURCE, USER
from tests.simulation.wishes import (
    LEASES_MS,
    NAMES,
    Wish,
    differences,
    process_strategy,
    wishes,
)


@dataclass
class OpenLease:
    """`complete`: nothing that it was taken from is known to be gone."""

    lease: Lease
    adjusted: dict[str, int] = field(default_factory=dict)
    keys: dict[str, Mapping[str, int]] = field(default_factory=dict)
    closed: tuple[str, Mapping[str, int]] | None = None
    complete: bool = True

    @property
    def amounts(self) -> dict[str, int]:
        return {name: amount + self.adjusted.get(name, 0) for name, amount in self.lease.consumed.items()}


class ProductBesideExactBuckets(BucketSteps):
    leases: Bundle[OpenLease] = Bundle("leases")

    @rule(target=leases, process=process_strategy, wish=wishes, ttl_ms=st.sampled_from(LEASES_MS))
    def take_a_lease(self, process: int, wish: Wish, ttl_ms: int) -> OpenLease | MultipleResults[OpenLease]:
        host, consume = self.model.processes[process], wish.consume(self.model)
        admitted: list[Admission] = []
        request = AcquireRequest(NAMESPACE, USER, RESOURCE, consume)
        if not self._ask(host, consume, lambda: admitted.append(host.acquire.acquire(request))):
            return multiple()
        lease = host.leases.open(admitted[0], ttl_ms)
        self.given.append(lease)
        return OpenLease(lease)

    @rule(
        taken=leases,
        process=process_strategy,
        delta=st.dictionaries(st.sampled_from(NAMES), differences, min_size=1),
        key=st.sampled_from(("k1", "k2", "k3")),
    )
    def adjust(self, taken: OpenLease, process: int, delta: Mapping[str, int], key: str) -> None:
        delta = {name: amount for name, amount in delta.items() if name in taken.lease.consumed}
        after = {**taken.amounts, **{name: taken.amounts[name] + amount for name, amount in delta.items()}}
        leases = self.model.processes[process].leases
        try:
            changed = leases.adjust(taken.lease, delta, key)
        except LeaseExpired:
            assert self.model.now_ms >= taken.lease.expires_at_ms
        except IdempotencyMismatch:
            assert taken.keys[key] != delta
        except LeaseClosed:
            assert taken.closed is not None
        except InvalidRequest:
            assert min(after.values()) < 0
        else:
            assert changed.amounts == delta
            if key in taken.keys:
                assert taken.keys[key] == delta
            else:
                assert taken.closed is None
                self._lease_changed(taken, taken.amounts, after)
                taken.keys[key] = delta
                taken.adjusted = {name: after[name] - had for name, had in taken.lease.consumed.items()}
            self._nothing_changed()
            return
        self._nothing_changed()

    @rule(
        taken=leases,
        process=process_strategy,
        actual=st.dictionaries(st.sampled_from(NAMES), st.one_of(st.integers(0, 70), st.integers(0, 1100))),
    )
    def settle(self, taken: OpenLease, process: int, actual: Mapping[str, int]) -> None:
        actual = {name: amount for name, amount in actual.items() if name in taken.lease.consumed}
        leases = self.model.processes[process].leases
        self._close(taken, "settle", {**taken.amounts, **actual}, lambda: leases.settle(taken.lease, actual).amounts)

    @rule(taken=leases, process=process_strategy)
    def release(self, taken: OpenLease, process: int) -> None:
        leases = self.model.processes[process].leases

        def release() -> Mapping[str, int]:
            # It answers what was given back.
            assert leases.release(taken.lease).amounts == taken.amounts
            return dict.fromkeys(taken.amounts, 0)

        self._close(taken, "release", dict.fromkeys(taken.amounts, 0), release)

    @rule(
        process=process_strategy,
        wish=wishes,
        waits_ms=st.sampled_from((0, 10, 2000)),
        more=differences,
        fails=st.booleans(),
    )
    def hold(self, process: int, wish: Wish, waits_ms: int, more: int, fails: bool) -> None:
        """In process: leaving by an exception gives back what was taken, with every adjustment."""
        host, consume = self.model.processes[process], wish.consume(self.model)
        admitted: list[Admission] = []
        request = AcquireRequest(NAMESPACE, USER, RESOURCE, consume)
        if not self._ask(host, consume, lambda: admitted.append(host.acquire.acquire(request))):
            return
        held = host.leases.hold(admitted[0])
        taken = OpenLease(held._lease)
        name = min(consume)
        try:
            with held:
                self._advance(waits_ms)
                if consume[name] + more >= 0:
                    held.adjust({name: more})
                    after = {**consume, name: consume[name] + more}
                    self._lease_changed(taken, consume, after)
                    taken.adjusted = {name: more}
                _fail(fails)
        except _Failed:
            self._lease_changed(taken, taken.amounts, dict.fromkeys(consume, 0))
        self._nothing_changed()

    def _close(
        self, taken: OpenLease, verb: str, wanted: Mapping[str, int], close: Callable[[], Mapping[str, int]]
    ) -> None:
        try:
            amounts = close()
        except LeaseExpired:
            assert self.model.now_ms >= taken.lease.expires_at_ms
        except LeaseClosed:
            assert taken.closed is not None
            assert taken.closed != (verb, wanted)
        else:
            assert self.model.now_ms < taken.lease.expires_at_ms
            assert amounts == wanted
            if taken.closed is None:
                self._lease_changed(taken, taken.amounts, wanted)
                taken.closed = (verb, wanted)
            else:
                assert taken.closed == (verb, wanted)
        self._nothing_changed()

    def _lease_changed(self, taken: OpenLease, before: Mapping[str, int], after: Mapping[str, int]) -> None:
        """Every member got or gave the difference, if what it was taken from is still there."""
        self.refused = None
        for member in taken.lease.members:
            images = self.model.images[member.entity]
            gone = any(
                share.shard not in images
                or images[share.shard].generation != share.generation
                or not share.amounts_milli.keys() <= images[share.shard].limits.keys()
                for share in member.shares
            )
            taken.complete = taken.complete and not gone
        for member in taken.lease.members:
            found = self.model.follow(member.entity)
            for name in member.shares[0].amounts_milli:
                wanted = (after[name] - before[name]) * MILLI
                total = sum(by_name[name] for by_name in found.taken.values())
                if taken.complete:
                    assert total == wanted, f"{member.entity} {name}: {total}, right is {wanted}"
                elif wanted < 0:
                    assert wanted <= total <= 0
                else:
                    assert total in {0, wanted}
            assert all(name in member.shares[0].amounts_milli for by_name in found.taken.values() for name in by_name)
            self.model.apply(member.entity, found)


class _Failed(Exception):
    pass


def _fail(fails: bool) -> None:
    if fails:
        raise _Failed
