"""Routes of budgets: parse, call one service, answer."""

from http import HTTPStatus
from typing import Annotated, Any, Final, Literal

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Path, Query
from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter

from control_plane.budget_models import BudgetAnswer, BudgetBody, BudgetPage, DefaultsAnswer, DefaultsBody
from control_plane.links import FROM_BUDGET, FROM_BUDGETS, FROM_DEFAULTS, NEXT_BUDGETS
from sluice.core.budget import DEFAULTS
from sluice.edge.callers import author_of, caller_of
from sluice.edge.conventions import (
    DELETE_RESPONSES,
    NOT_FOUND,
    PAGE_DEFAULT,
    IfMatch,
    PageCursor,
    PageLimit,
    get_responses,
    list_responses,
    namespace_of,
    put_responses,
    put_status,
    removed,
)
from sluice.edge.documentation import problems
from sluice.edge.etags import budget_etag, budget_if_match
from sluice.edge.models import ID_PATTERN
from sluice.repository.ledger_items import Ledger
from sluice.services.budget_lists import Sort
from sluice.services.budget_states import BudgetState
from sluice.services.listing import PageRequest
from sluice.shell import Services

BUDGETS: Final = "/v1/budgets"
DEFAULT_BUDGET: Final = f"/v1/budgets/{DEFAULTS}"
BUDGET: Final = "/v1/budgets/<entity>"

_EDIT: Final = ("GET", "PUT", "DELETE")
# In this order: the defaults are no entity.
BUDGET_ROUTES: Final = {BUDGETS: ("GET",), DEFAULT_BUDGET: _EDIT, BUDGET: _EDIT}

_EntityPath = Annotated[str, Path(pattern=ID_PATTERN)]
_Sort = Annotated[
    Literal["entity", "day_cost", "month_cost"],
    Query(description="by cost: the highest first, where no more than 1,000 entities have one"),
]
_PUT: Final[dict[int, Any]] = {**put_responses(BudgetAnswer, FROM_BUDGET), **problems(NOT_FOUND)}


def add_budget_routes(router: APIGatewayHttpRouter, services: Services) -> None:
    _add_default_routes(router, services)
    budgets, lists = services.money.budgets, services.money.budget_lists

    @router.get(
        BUDGETS,
        summary="All that is counted, by entity or by cost; for an app of those right below it",
        responses=list_responses(BudgetPage, {**FROM_BUDGETS, **NEXT_BUDGETS}),
    )
    def list_budgets(limit: PageLimit = PAGE_DEFAULT, cursor: PageCursor = None, sort: _Sort = "entity") -> BudgetPage:
        caller = caller_of(router)
        return BudgetPage.of(lists.of(caller.namespace, PageRequest(limit, cursor), Sort(sort), caller.within))

    @router.get(
        BUDGET,
        summary="What an entity may use, what it used in this day and month, and what is guaranteed",
        responses=get_responses(BudgetAnswer),
    )
    def get_budget(entity: _EntityPath) -> Response[BudgetAnswer]:
        return _answer(budgets.get(namespace_of(router), entity), HTTPStatus.OK)

    @router.put(
        BUDGET,
        summary="Replace the budget of an entity; what was counted stays. That of the org itself is the global one",
        responses=_PUT,
    )
    def put_budget(entity: _EntityPath, body: BudgetBody, match: IfMatch = None) -> Response[BudgetAnswer]:
        done = budgets.put(
            namespace_of(router), entity, body.to_own(), budget_if_match(match), author=author_of(router)
        )
        return _answer(done.state, put_status(created=done.created))

    @router.delete(
        BUDGET,
        summary="Remove the limits of an entity, inherited ones too; it is counted on, but for what those below it do",
        responses=DELETE_RESPONSES,
    )
    def delete_budget(entity: _EntityPath, match: IfMatch = None) -> Response[str]:
        budgets.delete(namespace_of(router), entity, budget_if_match(match), author=author_of(router))
        return removed()


def _add_default_routes(router: APIGatewayHttpRouter, services: Services) -> None:
    budgets = services.money.budgets

    @router.get(
        DEFAULT_BUDGET,
        summary="What holds for every entity that asks and has no other limits",
        responses=get_responses(DefaultsAnswer),
    )
    def get_defaults() -> Response[DefaultsAnswer]:
        return _defaults(budgets.get_defaults(namespace_of(router)), HTTPStatus.OK)

    @router.put(
        DEFAULT_BUDGET,
        summary="Replace the defaults; they act within a minute",
        responses=put_responses(DefaultsAnswer, FROM_DEFAULTS),
    )
    def put_defaults(body: DefaultsBody, match: IfMatch = None) -> Response[DefaultsAnswer]:
        done = budgets.put_defaults(
            namespace_of(router), body.to_own(), budget_if_match(match), author=author_of(router)
        )
        return _defaults(done.ledger, put_status(created=done.created))

    @router.delete(DEFAULT_BUDGET, summary="Remove the defaults", responses=DELETE_RESPONSES)
    def delete_defaults(match: IfMatch = None) -> Response[str]:
        budgets.delete_defaults(namespace_of(router), budget_if_match(match), author=author_of(router))
        return removed()


def _answer(state: BudgetState, status: HTTPStatus) -> Response[BudgetAnswer]:
    """Only what somebody asked for has a version."""
    ledger = state.ledger
    return Response(
        status_code=status,
        content_type="application/json",
        body=BudgetAnswer.of(state),
        headers={"ETag": budget_etag(ledger)} if ledger is not None and ledger.has_own else {},
    )


def _defaults(defaults: Ledger, status: HTTPStatus) -> Response[DefaultsAnswer]:
    return Response(
        status_code=status,
        content_type="application/json",
        body=DefaultsAnswer.of(defaults),
        headers={"ETag": budget_etag(defaults)},
    )
