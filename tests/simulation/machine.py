"""The steps of the model: each is done by the product, and checked against what exact buckets would have done."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from math import ceil

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from sluice.core.errors import (
    LimitExceeded,
    NeverAdmissible,
    UnknownLimit,
)
from sluice.core.lease import Lease
from sluice.core.limits import LimitsByName, Scope
from sluice.core.shards import SHARDS_MAX
from sluice.repository.idempotency import KEPT_S, IdempotencyKey
from sluice.repository.items import Bucket
from sluice.repository.keys import Key
from sluice.services.chains import AcquireRequest
from tests.simulation.model import NAMESPACE, OF_RESOURCE, RESOURCE, TEAM, USER, Model, Process
from tests.simulation.wishes import (
    PROCESSES,
    STEPS_MS,
    Wish,
    levels_strategy,
    process_strategy,
    wishes,
)


class BucketSteps(RuleBasedStateMachine):
    model: Model
    refused: tuple[Process, Mapping[str, int], int] | None = None
    answers: dict[str, tuple[AcquireRequest, str, int]]
    given: list[Lease]

    @initialize(
        seed=st.integers(0, 2**16),
        chained=st.booleans(),
        levels=levels_strategy,
        own=st.one_of(st.none(), st.none(), levels_strategy),
        of_team=levels_strategy,
    )
    def start(
        self, seed: int, chained: bool, levels: LimitsByName, own: LimitsByName | None, of_team: LimitsByName
    ) -> None:
        self.model = Model(seed, processes=PROCESSES, chained=chained)
        self.answers = {}
        self.given = []
        first = self.model.processes[0]
        self.model.put_limits(first, OF_RESOURCE, levels)
        if own is not None:
            self.model.put_limits(first, Scope(USER, RESOURCE), own)
        if chained:
            self.model.put_limits(first, Scope(TEAM, RESOURCE), of_team)

    @rule(process=process_strategy, wishes=st.lists(wishes, min_size=1, max_size=5))
    def acquire(self, process: int, wishes: list[Wish]) -> None:
        for wish in wishes:
            self._ask(self.model.processes[process], wish.consume(self.model))
            self.model.check()

    @rule(process=process_strategy, wish=wishes)
    def acquire_with_a_key(self, process: int, wish: Wish) -> None:
        host, consume = self.model.processes[process], wish.consume(self.model)
        key = self.model.new_token()
        request = AcquireRequest(NAMESPACE, USER, RESOURCE, consume)

        def ask() -> None:
            answered = host.idempotent.acquire(request, _key(key), lambda admission: f"{key} {admission.members}")
            assert not answered.repeated
            self.answers[key] = (request, answered.text, self.model.now_ms)

        self._ask(host, consume, ask)

    @precondition(lambda self: self.answers)
    @rule(process=process_strategy, data=st.data())
    def ask_again_with_a_key(self, process: int, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.answers)))
        request, text, answered_ms = self.answers[key]
        if self.model.now_ms // 1000 >= answered_ms // 1000 + KEPT_S:
            return
        answered = self.model.processes[process].idempotent.acquire(request, _key(key), lambda _admission: "other")
        assert (answered.text, answered.repeated) == (text, True)
        for entity in self.model.members:
            # It may have moved the bucket to changed limits before it found the record.
            assert not self._followed(entity)

    @precondition(lambda self: self.refused is not None)
    @rule()
    def wait_as_told(self) -> None:
        """A millisecond before it is refused still; then it passes. To the millisecond, without any tolerance."""
        assert self.refused is not None
        process, consume, admit_at_ms = self.refused
        if admit_at_ms <= self.model.now_ms or self._is_overtaken(process):
            return
        if admit_at_ms - 1 > self.model.now_ms:
            self._advance(admit_at_ms - 1 - self.model.now_ms)
            assert not self._ask(process, consume), "it passes a millisecond early"
        self._advance(admit_at_ms - self.model.now_ms)
        assert self._ask(process, consume), "it does not pass when it was told to"

    @rule(duration_ms=st.sampled_from(STEPS_MS))
    def advance(self, duration_ms: int) -> None:
        self._advance(duration_ms)

    @rule()
    def let_everything_refill(self) -> None:
        for reference in self.model.references.values():
            limits = [limit for shard in reference.shards.values() for limit in shard.limits.values()]
            times_ms = [(limit.rates.burst + 1 - limit.level) / limit.rates.per_ms for limit in limits]
            self._advance(ceil(max(times_ms, default=Fraction(0))))

    @rule(process=process_strategy, wish=wishes, before_ms=st.sampled_from((-1, 0, 1, 1000, 86_400_000)))
    def use_it_just_before_it_may_expire(self, process: int, wish: Wish, before_ms: int) -> None:
        """Whoever writes then must see to it that it lives on."""
        expire_at_s = [image.expires_at_s for images in self.model.images.values() for image in images.values()]
        at_ms = max((at_s * 1000 for at_s in expire_at_s if at_s is not None), default=0)
        self._advance(max(0, at_ms - before_ms - self.model.now_ms))
        self._ask(self.model.processes[process], wish.consume(self.model))
        self._advance(max(0, at_ms - self.model.now_ms))
        for entity, key in self.model.expired():
            self._expire(entity, key)

    @rule(process=process_strategy, levels=levels_strategy)
    def change_limits_of_the_resource(self, process: int, levels: LimitsByName) -> None:
        self._changed()
        self.model.put_limits(self.model.processes[process], OF_RESOURCE, levels)

    @rule(process=process_strategy, levels=levels_strategy)
    def change_own_limits(self, process: int, levels: LimitsByName) -> None:
        self._changed()
        self.model.put_limits(self.model.processes[process], Scope(USER, RESOURCE), levels)

    @precondition(lambda self: Scope(USER, RESOURCE) in self.model.levels)
    @rule(process=process_strategy)
    def remove_own_limits(self, process: int) -> None:
        self._changed()
        self.model.delete_limits(self.model.processes[process], Scope(USER, RESOURCE))

    @rule(process=process_strategy, data=st.data())
    def split(self, process: int, data: st.DataObject) -> None:
        entity = data.draw(st.sampled_from(self.model.members))
        images = self.model.images[entity]
        if images:
            self._split(process, images[data.draw(st.sampled_from(sorted(images)))])

    @rule(process=process_strategy, data=st.data())
    def split_every_shard(self, process: int, data: st.DataObject) -> None:
        for image in list(self.model.images[data.draw(st.sampled_from(self.model.members))].values()):
            self._split(process, image)

    def _split(self, process: int, image: Bucket) -> None:
        self._changed()
        done = self.model.processes[process].buckets.sharding.split(image)
        assert done is (image.shard_count < SHARDS_MAX)
        if done:
            child = self.model.images_of(image.entity)[image.shard + image.shard_count]
            self.model.references[image.entity].split(image.shard, child.generation)
            assert not self._followed(image.entity)

    @rule(process=process_strategy, data=st.data())
    def merge(self, process: int, data: st.DataObject) -> None:
        entity = data.draw(st.sampled_from(self.model.members))
        images, reference = self.model.images[entity], self.model.references[entity]
        if not images:
            return
        limits = [limit for shard in reference.shards.values() for limit in shard.limits.values()]
        self._changed()
        if self.model.processes[process].buckets.sharding.merge(images[0]):
            assert len(images) > 1
            assert all(limit.level >= limit.rates.burst - limit.above for limit in limits), "only full shards"
            for image in images.values():
                if image.shard:
                    reference.forget_consumption(image)
            merged = self.model.images_of(entity)
            reference.merge(merged[0])
            self.model.images[entity] = {0: images[0]}
            assert not self._followed(entity)
        else:
            moved = len({image.fingerprint for image in images.values()}) > 1
            assert len(images) < 2 or moved or not all(limit.full for limit in limits), "all shards are full"

    @precondition(lambda self: self.model.expired())
    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        self._expire(*data.draw(st.sampled_from(self.model.expired())))

    def _expire(self, entity: str, key: Key) -> None:
        """TTL removes what nobody would miss: a bucket that is full, and that no open lease can come back to."""
        generation = self.model.images[entity][0].generation
        assert not any(
            share.generation == generation
            for lease in self.given
            if lease.expires_at_ms > self.model.now_ms
            for member in lease.members
            for share in member.shares
        )
        reference = self.model.references[entity]
        assert reference.shards.keys() == {0}, "a split bucket does not expire"
        for name, limit in reference.shards[0].limits.items():
            assert limit.level == limit.rates.burst, f"{name} of {entity} expires though it is not full"
        self._changed()
        self.model.table.expire(key)
        reference.forget_consumption(self.model.images[entity][0])
        reference.expire()
        self.model.images[entity] = {}

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "model"):
            self.model.check()
            self.model.step += 1

    def _advance(self, duration_ms: int) -> None:
        self.model.advance(duration_ms)

    def _changed(self) -> None:
        """Done by somebody in a way that a remembered refusal does not know."""
        self.model.raised_step = self.model.step
        self.refused = None

    def _ask(self, process: Process, consume: Mapping[str, int], send: Callable[[], None] | None = None) -> bool:
        """Whether it was admitted, after checking that this is right. Nobody is contended: nobody else is at work."""
        request = AcquireRequest(NAMESPACE, USER, RESOURCE, consume)
        self.model.check()
        self.model.step += 1
        asked = self.model.ask(process, consume)
        try:
            if send is None:
                process.acquire.acquire(request)
            else:
                send()
        except LimitExceeded as refused:
            if self.model.must_be_refused(asked, refused):
                self.refused = (process, consume, refused.admit_at_ms)
            return False
        except (UnknownLimit, NeverAdmissible):
            self.model.must_be_invalid(asked)
            return False
        self.model.must_be_admitted(asked)
        self.refused = None
        return True

    def _is_overtaken(self, process: Process) -> bool:
        """By limits that this process does not know yet."""
        return any(self.model._known(process, entity) != self.model.effective(entity) for entity in self.model.members)

    def _followed(self, entity: str) -> bool:
        return bool(self.model.follow(entity).taken)

    def _nothing_changed(self) -> None:
        for entity in self.model.members:
            assert self.model.images_of(entity) == self.model.images[entity]


def _key(text: str) -> IdempotencyKey:
    return IdempotencyKey(NAMESPACE, "app", text, "hash")
