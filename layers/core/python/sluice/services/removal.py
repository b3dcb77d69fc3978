"""Removing an entity: first what it is and its limits, in one transaction, then its profiles, its budget and buckets.

Once the entity is gone nobody can be put below it, because whoever does that checks the parent in the same transaction.
Who was put below it before is found by an index, and an index lags: no condition can ask it. So the children are looked
for once more after the entity is gone, and if there are some, everything is put back. Two kinds of children escape
that: one that the index shows later still, and one that is registered by its own first acquire, which goes by a parent
that was read up to a minute ago. They keep a parent that does not exist: nothing is taken there, and they can be moved.

A ledger in which calls under way hold something stays, because they are settled there: while there are such calls, the
entity is not removed. What one takes just then, by a chain that was read up to a minute ago, keeps the ledger of an
entity that is gone; removing the entity once more removes it. Where it was judged whether the entity may go, only the
ledger that was judged goes. One that somebody wrote since stays with what was spent, also of an entity that is gone:
its caller could not remove it once more, and made anew, the entity goes on with it.

All shards of a bucket go in one transaction. One after the other, a removal that broke off would leave a bucket that
can not keep what it promises: shares that are missing are neither refilled nor can they be asked for.

Every step can be repeated. A removal that ended half way is ended by the next one, also when the entity itself is gone
already.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from sluice.core.audit import Action, Author, budget_target, entity_target, limits_subject, limits_target
from sluice.core.backoff import RandomBelow, contended_wait_ms
from sluice.core.budget import NOTHING
from sluice.core.errors import Contended, InUse, NotFound, PreconditionFailed
from sluice.core.labels import InferenceProfile
from sluice.core.orgs import EntityRole
from sluice.core.shards import SHARDS_MAX
from sluice.repository import budget_keys, keys, resharding
from sluice.repository.audit import AuditEvent, Image, audit_put
from sluice.repository.entities import (
    bucket_delete,
    buckets_query,
    children_query,
    entity_delete,
    entity_image,
    entity_put,
    legacy_bucket_delete,
)
from sluice.repository.items import Bucket, Entity, decode_bucket, decode_entity
from sluice.repository.ledger_items import Ledger, budget_image, decode_ledger
from sluice.repository.ledgers import delete_ledger, delete_unchanged_ledger, ledger_unchanged, ledger_unheld
from sluice.repository.legacy import is_legacy, items_query
from sluice.repository.limits import (
    ScopedLimits,
    decode_scoped_limits,
    limits_delete,
    limits_image,
    limits_put,
    own_limits_query,
)
from sluice.repository.profiles import decode_profile, profile_delete, profile_image, profile_target, profiles_query
from sluice.repository.requests import DeleteRequest, QueryRequest, TransactWrite
from sluice.repository.store import Applied, Committed, Store
from sluice.repository.wire import Item

_WRITE_ROUNDS: Final = 4
# Two elements of a transaction each, and DynamoDB takes a hundred.
_LIMITS_AT_ONCE: Final = 40
_PROFILES_AT_ONCE: Final = 40

Precondition = Callable[[Entity | None], bool]


@dataclass(frozen=True, slots=True)
class Company:
    """What goes and comes back with an entity, in the same transaction, and how the audit tells of it."""

    deleted: Action
    put: Action
    target: str
    image: Image
    removed: Sequence[TransactWrite] = ()
    put_back: Sequence[TransactWrite] = ()


CompanyOf = Callable[[Entity], Company]
"""Asked anew for each try: the company may have changed."""


MayGo = Callable[[Ledger | None], None]
"""Raises where an entity with this ledger must stay. Asked anew for each try: nothing is held in the ledger."""


@dataclass(frozen=True, slots=True)
class _Gone:
    """`known`: whether there was such an entity. `ledger`: its own, as it was judged."""

    known: bool
    ledger: Ledger | None = None


def alone(entity: Entity) -> Company:
    if entity.role is not EntityRole.OTHER:
        raise InUse(f"this entity is an {entity.role.value} and goes only with it; delete the {entity.role.value}")
    return Company(Action.ENTITY_DELETE, Action.ENTITY_PUT, entity_target(entity.entity), entity_image(entity))


class Removal:
    def __init__(
        self,
        store: Store,
        clock_ms: Callable[[], int],
        random_below: RandomBelow,
        new_token: Callable[[], str],
    ) -> None:
        self._store = store
        self._clock_ms = clock_ms
        self._random_below = random_below
        self._new_token = new_token

    def remove(
        self,
        namespace: str,
        entity_id: str,
        precondition: Precondition,
        author: Author,
        company_of: CompanyOf = alone,
        may_go: MayGo | None = None,
    ) -> None:
        """`may_go`: None where it goes whatever it has spent, and its ledger with all that is spent meanwhile."""
        gone = self._remove_entity(namespace, entity_id, precondition, author, company_of, may_go)
        limits = self._remove_limits(namespace, entity_id, author)
        profiles = self._remove_profiles(namespace, entity_id, author)
        if may_go is None:
            budget = self._remove_ledger(namespace, entity_id, author)
        else:
            budget = self._remove_judged(gone.ledger, author)
        buckets = self._remove_buckets(namespace, entity_id)
        if not (gone.known or limits or profiles or budget or buckets):
            raise NotFound("there is no such entity")

    def _remove_entity(
        self,
        namespace: str,
        entity_id: str,
        precondition: Precondition,
        author: Author,
        company_of: CompanyOf,
        may_go: MayGo | None,
    ) -> _Gone:
        """The entity and as many of its limits as fit."""
        event_id, at_ms = self._new_token(), self._clock_ms()
        for _ in range(_WRITE_ROUNDS):
            before = self._find(namespace, entity_id)
            accepted = precondition(before)
            if before is None:
                if not accepted:
                    raise NotFound("there is no such entity")
                return _Gone(known=False)
            if not accepted:
                raise PreconditionFailed("the stored version is another one")
            company = company_of(before)
            self._refuse_with_children(namespace, entity_id)
            ledger = self._unheld_ledger(namespace, entity_id)
            if may_go is not None:
                may_go(ledger)
            limits = self._some_limits(namespace, entity_id)
            event = _entity_event(entity_id, company, event_id, at_ms, author)
            writes = [
                audit_put(namespace, event),
                entity_delete(namespace, before),
                *company.removed,
                *_ledger_check(namespace, entity_id, ledger, is_judged=may_go is not None),
                *self._limits_removed(namespace, limits, author),
            ]
            outcome = self._store.transact(writes, self._new_token())
            # The event is there already: an earlier try was applied.
            if isinstance(outcome, Committed) or outcome.failures[0] is not None:
                self._put_back_for_children(namespace, before, company, limits, author)
                return _Gone(known=True, ledger=ledger)
        raise Contended(contended_wait_ms(self._random_below))

    def _put_back_for_children(
        self, namespace: str, entity: Entity, company: Company, limits: Sequence[ScopedLimits], author: Author
    ) -> None:
        try:
            self._refuse_with_children(namespace, entity.entity)
        except InUse:
            event = _entity_event(entity.entity, company, self._new_token(), self._clock_ms(), author, put_back=True)
            writes = [
                entity_put(namespace, entity, None),
                *company.put_back,
                audit_put(namespace, event),
                *self._limits_put_back(namespace, limits, author),
            ]
            # Where that fails somebody has made the entity anew, and the children have a parent.
            self._store.transact(writes, self._new_token())
            raise

    def _refuse_with_children(self, namespace: str, entity_id: str) -> None:
        if self._store.query({**children_query(namespace, entity_id), "Limit": 1}).items:
            raise InUse("other entities stand below this one; move or remove them first")

    def _remove_limits(self, namespace: str, entity_id: str, author: Author) -> bool:
        """What is left of the limits. False if nothing was."""

        def some() -> list[TransactWrite]:
            return self._limits_removed(namespace, self._some_limits(namespace, entity_id), author)

        return self._remove_all(some)

    def _remove_profiles(self, namespace: str, entity_id: str, author: Author) -> bool:
        """Of an app. None is added once it is gone. False if there were none."""

        def some() -> list[TransactWrite]:
            page = self._store.query({**profiles_query(namespace, entity_id), "Limit": _PROFILES_AT_ONCE})
            writes: list[TransactWrite] = []
            for profile in map(decode_profile, page.items):
                event = self._profile_event(profile, author)
                writes += [profile_delete(namespace, profile), audit_put(namespace, event)]
            return writes

        return self._remove_all(some)

    def _remove_ledger(self, namespace: str, entity_id: str, author: Author) -> bool:
        """False if there was none."""

        def some() -> list[TransactWrite]:
            ledger = self._unheld_ledger(namespace, entity_id)
            return [] if ledger is None else self._ledger_removed(delete_ledger(ledger), ledger, author)

        return self._remove_all(some)

    def _remove_judged(self, ledger: Ledger | None, author: Author) -> bool:
        """False if there was none, or if it stays: it is another one by now."""
        if ledger is None:
            return False
        writes = self._ledger_removed(delete_unchanged_ledger(ledger), ledger, author)
        return isinstance(self._store.transact(writes, self._new_token()), Committed)

    def _ledger_removed(self, request: DeleteRequest, ledger: Ledger, author: Author) -> list[TransactWrite]:
        told = [audit_put(ledger.namespace, self._budget_event(ledger, author))] if ledger.has_own else []
        return [{"Delete": request}, *told]

    def _unheld_ledger(self, namespace: str, entity_id: str) -> Ledger | None:
        item = self._store.get(budget_keys.ledger(namespace, entity_id), consistent=True)
        ledger = None if item is None else decode_ledger(item)
        if ledger is not None and ledger.standing.held != NOTHING:
            raise InUse(
                "calls of this entity are under way and hold a part of its budget; try again when they are over"
            )
        return ledger

    def _remove_all(self, some: Callable[[], list[TransactWrite]]) -> bool:
        """`some`: what removes a part of what is left. False if nothing was."""
        removed = False
        failed = 0
        while writes := some():
            if isinstance(self._store.transact(writes, self._new_token()), Committed):
                removed = True
                continue
            failed += 1
            if failed == _WRITE_ROUNDS:
                raise Contended(contended_wait_ms(self._random_below))
        return removed

    def _remove_buckets(self, namespace: str, entity_id: str) -> bool:
        """False if there were none."""
        legacy = self._all_keys(items_query(keys.namespace_prefix(namespace), entity_id, resource=""))
        for key in legacy:
            self._store.delete(legacy_bucket_delete(key))
        shards: dict[keys.Key, list[Bucket]] = {}
        items = self._store.batch_get(self._all_keys(buckets_query(namespace, entity_id)), consistent=True)
        for item in items:
            bucket = self._current(item)
            if bucket is not None:
                shards.setdefault(keys.first_shard(bucket.key, bucket.shard), []).append(bucket)
        for first, seen in shards.items():
            self._remove_bucket(first, seen)
        return bool(items or legacy)

    def _current(self, item: Item) -> Bucket | None:
        """The bucket; one of an old layout is removed here, unless somebody has just moved it."""
        if is_legacy(item):
            outcome = self._store.delete(legacy_bucket_delete(keys.key_of(item)))
            if isinstance(outcome, Applied) or outcome.item is None:
                return None
            item = outcome.item
        return decode_bucket(item)

    def _remove_bucket(self, first: keys.Key, seen: Sequence[Bucket]) -> None:
        """Whole, or not at all. The list may lack a shard: then the transaction finds it, and all are read."""
        every = [keys.bucket_shard(first, shard) for shard in range(SHARDS_MAX)]
        for _ in range(_WRITE_ROUNDS):
            if self._remove_shards(seen):
                return
            seen = [bucket for item in self._store.batch_get(every, consistent=True) if (bucket := self._current(item))]
            if not seen:
                return
        raise Contended(contended_wait_ms(self._random_below))

    def _remove_shards(self, seen: Sequence[Bucket]) -> bool:
        """False if one of them was split, merged or made anew since, or if there are more."""
        if len(seen) == 1 and seen[0].shard_count == 1:
            outcome = self._store.delete(bucket_delete(seen[0]))
            return isinstance(outcome, Applied) or outcome.item is None
        return isinstance(self._store.transact(resharding.remove(seen), self._new_token()), Committed)

    def _find(self, namespace: str, entity_id: str) -> Entity | None:
        item = self._store.get(keys.entity(namespace, entity_id), consistent=True)
        return None if item is None else decode_entity(item)

    def _some_limits(self, namespace: str, entity_id: str) -> list[ScopedLimits]:
        page = self._store.query({**own_limits_query(namespace, entity_id), "Limit": _LIMITS_AT_ONCE})
        return [decode_scoped_limits(item) for item in page.items]

    def _all_keys(self, request: QueryRequest) -> list[keys.Key]:
        page = self._store.query(request)
        items = list(page.items)
        while page.next_start is not None:
            page = self._store.query({**request, "ExclusiveStartKey": page.next_start})
            items += page.items
        return [keys.key_of(item) for item in items]

    def _limits_removed(self, namespace: str, limits: Sequence[ScopedLimits], author: Author) -> list[TransactWrite]:
        writes: list[TransactWrite] = []
        for own in limits:
            event = self._limits_event(own, author, put_back=False)
            writes += [limits_delete(namespace, own.scope, own.stored), audit_put(namespace, event)]
        return writes

    def _limits_put_back(self, namespace: str, limits: Sequence[ScopedLimits], author: Author) -> list[TransactWrite]:
        writes: list[TransactWrite] = []
        for own in limits:
            event = self._limits_event(own, author, put_back=True)
            writes += [limits_put(namespace, own.scope, own.stored, None), audit_put(namespace, event)]
        return writes

    def _profile_event(self, profile: InferenceProfile, author: Author) -> AuditEvent:
        return AuditEvent(
            event_id=self._new_token(),
            subject=profile.entity,
            at_ms=self._clock_ms(),
            author=author,
            action=Action.PROFILE_DELETE,
            target=profile_target(profile.label, profile.entity),
            before=profile_image(profile),
            after=None,
        )

    def _budget_event(self, ledger: Ledger, author: Author) -> AuditEvent:
        return AuditEvent(
            event_id=self._new_token(),
            subject=ledger.entity,
            at_ms=self._clock_ms(),
            author=author,
            action=Action.BUDGET_DELETE,
            target=budget_target(ledger.entity),
            before=budget_image(ledger),
            after=None,
        )

    def _limits_event(self, own: ScopedLimits, author: Author, *, put_back: bool) -> AuditEvent:
        image = limits_image(own.stored)
        return AuditEvent(
            event_id=self._new_token(),
            subject=limits_subject(own.scope),
            at_ms=self._clock_ms(),
            author=author,
            action=Action.LIMITS_PUT if put_back else Action.LIMITS_DELETE,
            target=limits_target(own.scope),
            before=None if put_back else image,
            after=image if put_back else None,
        )


def _ledger_check(namespace: str, entity_id: str, ledger: Ledger | None, *, is_judged: bool) -> list[TransactWrite]:
    """What it must still be in the moment in which the entity goes."""
    if is_judged:
        return [{"ConditionCheck": ledger_unchanged(namespace, entity_id, ledger)}]
    return [] if ledger is None else [{"ConditionCheck": ledger_unheld(ledger)}]


def _entity_event(
    entity_id: str, company: Company, event_id: str, at_ms: int, author: Author, *, put_back: bool = False
) -> AuditEvent:
    return AuditEvent(
        event_id=event_id,
        subject=entity_id,
        at_ms=at_ms,
        author=author,
        action=company.put if put_back else company.deleted,
        target=company.target,
        before=None if put_back else company.image,
        after=company.image if put_back else None,
    )
