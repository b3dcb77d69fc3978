"""Answers of the lists."""

from typing import Any

from pydantic import BaseModel, Field

from control_plane.models import EntityAnswer, LimitsAnswer
from sluice.core.standing import sums
from sluice.edge.conventions import Page
from sluice.edge.problems import rfc3339
from sluice.repository.audit import AuditEvent
from sluice.repository.items import Entity
from sluice.repository.limits import ScopedLimits
from sluice.services.bucket_lists import BucketLimitStanding, EntityCapacity
from sluice.services.listing import Listed


class EntityPage(Page):
    items: list[EntityAnswer]

    @classmethod
    def of(cls, listed: Listed[Entity]) -> "EntityPage":
        return cls(items=[EntityAnswer.of(entity) for entity in listed.items], next_cursor=listed.next_cursor)


class EntityLimitsAnswer(LimitsAnswer):
    entity: str


class EntityLimitsPage(Page):
    items: list[EntityLimitsAnswer]

    @classmethod
    def of(cls, listed: Listed[ScopedLimits]) -> "EntityLimitsPage":
        items = [
            EntityLimitsAnswer(entity=str(found.scope.entity), **dict(LimitsAnswer.of(found.stored)))
            for found in listed.items
        ]
        return cls(items=items, next_cursor=listed.next_cursor)


class ResourceAnswer(LimitsAnswer):
    resource: str


class ResourcePage(Page):
    items: list[ResourceAnswer]

    @classmethod
    def of(cls, listed: Listed[ScopedLimits]) -> "ResourcePage":
        items = [
            ResourceAnswer(resource=str(found.scope.resource), **dict(LimitsAnswer.of(found.stored)))
            for found in listed.items
        ]
        return cls(items=items, next_cursor=listed.next_cursor)


class BucketAnswer(BaseModel):
    """One limit of a bucket, over all its shards, in whole tokens."""

    resource: str
    limit: str
    capacity: int
    burst: int
    available: int = Field(description="rounded down; negative while in debt")
    refill_amount: int
    refill_period_seconds: int
    shards: int
    call_limits: bool = Field(description="whether the limits came with a call and are stored nowhere else")


class BucketPage(Page):
    items: list[BucketAnswer]

    @classmethod
    def of(cls, listed: Listed[BucketLimitStanding]) -> "BucketPage":
        items = [
            BucketAnswer(
                resource=found.resource,
                limit=found.limit,
                capacity=found.standing.capacity,
                burst=found.standing.burst,
                available=found.standing.available,
                refill_amount=found.standing.refill_amount,
                refill_period_seconds=found.standing.refill_period_seconds,
                shards=found.shards,
                call_limits=found.call_limits,
            )
            for found in listed.items
        ]
        return cls(items=items, next_cursor=listed.next_cursor)


class CapacityAnswer(BaseModel):
    available: int
    capacity: int


class EntityCapacityAnswer(BaseModel):
    entity: str
    limits: dict[str, CapacityAnswer]


class CapacityPage(Page):
    items: list[EntityCapacityAnswer]
    page_sums: dict[str, CapacityAnswer] = Field(description="over the entities of this page")

    @classmethod
    def of(cls, listed: Listed[EntityCapacity]) -> "CapacityPage":
        items = [
            EntityCapacityAnswer(
                entity=found.entity,
                limits={
                    name: CapacityAnswer(available=one.available, capacity=one.capacity)
                    for name, one in sorted(found.limits.items())
                },
            )
            for found in listed.items
        ]
        added = sums(found.limits for found in listed.items)
        page_sums = {
            name: CapacityAnswer(available=one.available, capacity=one.capacity) for name, one in sorted(added.items())
        }
        return cls(items=items, next_cursor=listed.next_cursor, page_sums=page_sums)


class AuditAnswer(BaseModel):
    event_id: str
    at: str
    actor: str
    action: str
    target: str = Field(description="what was changed, by its path")
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    request_id: str


class AuditPage(Page):
    items: list[AuditAnswer]

    @classmethod
    def of(cls, listed: Listed[AuditEvent]) -> "AuditPage":
        items = [
            AuditAnswer(
                event_id=event.event_id,
                at=rfc3339(event.at_ms),
                actor=event.author.actor,
                action=event.action,
                target=event.target,
                before=None if event.before is None else dict(event.before),
                after=None if event.after is None else dict(event.after),
                request_id=event.author.request_id,
            )
            for event in listed.items
        ]
        return cls(items=items, next_cursor=listed.next_cursor)
