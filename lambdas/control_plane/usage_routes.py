"""Routes of usage: parse, call one service, answer a page."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from aws_lambda_powertools.event_handler.openapi.params import Path, Query
from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter
from pydantic import BaseModel, Field

from control_plane.links import NEXT_RESOURCE_USAGE, NEXT_USAGE
from sluice.core.snapshots import Window
from sluice.edge.callers import caller_of
from sluice.edge.conventions import PAGE_DEFAULT, Page, PageCursor, PageLimit, list_responses, namespace_of
from sluice.edge.models import ID_PATTERN
from sluice.edge.problems import rfc3339
from sluice.edge.times import TIME_LENGTH_MAX, TIME_PATTERN, time_ms
from sluice.repository.snapshots import Snapshot
from sluice.services.listing import Listed, PageRequest
from sluice.services.usage import UsageRange, Used
from sluice.shell import Services

ENTITY_USAGE: Final = "/v1/entities/<entity>/usage"
RESOURCE_USAGE: Final = "/v1/resources/<resource>/usage"
USAGE_ROUTES: Final = dict.fromkeys((ENTITY_USAGE, RESOURCE_USAGE), ("GET",))

_MILLI: Final = 1000

_EntityPath = Annotated[str, Path(pattern=ID_PATTERN)]
_ResourcePath = Annotated[str, Path(pattern=ID_PATTERN)]
_Resource = Annotated[str, Query(pattern=ID_PATTERN)]
_Window = Annotated[Literal["hour", "day"], Query()]
_From = Annotated[str | None, Query(alias="from", pattern=TIME_PATTERN, max_length=TIME_LENGTH_MAX)]
_To = Annotated[str | None, Query(alias="to", pattern=TIME_PATTERN, max_length=TIME_LENGTH_MAX)]


class UsedAnswer(BaseModel):
    start: str
    end: str
    events: int = Field(description="writes of buckets: acquires, adjustments and what else changed them")
    consumed: dict[str, int] = Field(description="whole tokens by limit; what was given back is taken off")

    @classmethod
    def of(cls, used: Used) -> "UsedAnswer":
        consumed = _tokens(used.consumed_milli)
        return cls(start=rfc3339(used.starts_ms), end=rfc3339(used.ends_ms), events=used.events, consumed=consumed)


class EntityUsedAnswer(UsedAnswer):
    entity: str
    call_limits: bool = Field(description="of a bucket under limits of single calls")

    @classmethod
    def of_snapshot(cls, snapshot: Snapshot) -> "EntityUsedAnswer":
        name = snapshot.name
        return cls(
            entity=name.entity,
            call_limits=name.call_fingerprint is not None,
            start=rfc3339(name.starts_ms),
            end=rfc3339(name.ends_ms),
            events=snapshot.total_events,
            consumed=_tokens(snapshot.consumed_milli),
        )


class UsagePage(Page):
    items: list[UsedAnswer]

    @classmethod
    def of(cls, listed: Listed[Used]) -> "UsagePage":
        return cls(items=[UsedAnswer.of(used) for used in listed.items], next_cursor=listed.next_cursor)


class ResourceUsagePage(Page):
    items: list[EntityUsedAnswer]

    @classmethod
    def of(cls, listed: Listed[Snapshot]) -> "ResourceUsagePage":
        items = [EntityUsedAnswer.of_snapshot(snapshot) for snapshot in listed.items]
        return cls(items=items, next_cursor=listed.next_cursor)


def add_usage_routes(router: APIGatewayHttpRouter, services: Services) -> None:
    @router.get(
        ENTITY_USAGE,
        summary="What an entity used of a resource, hour by hour or day by day in UTC; seconds behind the present",
        responses=list_responses(UsagePage, NEXT_USAGE, of_one=True),
    )
    def entity_usage(
        entity: _EntityPath,
        resource: _Resource,
        window: _Window = "hour",
        from_: _From = None,
        to: _To = None,
        limit: PageLimit = PAGE_DEFAULT,
        cursor: PageCursor = None,
    ) -> UsagePage:
        """The last 24 hours or 30 days unless asked otherwise. Windows without usage are shown with zeros."""
        asked = _range(window, from_, to)
        page = PageRequest(limit, cursor)
        namespace = namespace_of(router)
        since_ms = services.entities.own_since_ms(namespace, caller_of(router).within, entity)
        return UsagePage.of(services.usage.of_entity(namespace, entity, resource, asked, page, since_ms))

    @router.get(
        RESOURCE_USAGE,
        summary="What all entities used of a resource, in the order of time",
        responses=list_responses(ResourceUsagePage, NEXT_RESOURCE_USAGE),
    )
    def resource_usage(
        resource: _ResourcePath,
        window: _Window = "hour",
        from_: _From = None,
        to: _To = None,
        limit: PageLimit = PAGE_DEFAULT,
        cursor: PageCursor = None,
    ) -> ResourceUsagePage:
        asked = _range(window, from_, to)
        page = PageRequest(limit, cursor)
        return ResourceUsagePage.of(services.usage.of_resource(namespace_of(router), resource, asked, page))


def _range(window: str, from_: str | None, to: str | None) -> UsageRange:
    return UsageRange(Window(window), _optional_ms("from", from_), _optional_ms("to", to))


def _optional_ms(field: str, text: str | None) -> int | None:
    return None if text is None else time_ms(field, text)


def _tokens(consumed_milli: Mapping[str, int]) -> dict[str, int]:
    return {limit: milli // _MILLI for limit, milli in consumed_milli.items()}
