"""What a caller is told whom a budget refuses."""

import json

from sluice.core.errors import BudgetExceeded, BudgetViolation, NeverWithinBudget, Remedy, ReserveRequired, SluiceError
from sluice.edge.problems import problem_of

FULL = BudgetViolation("user-1", "day", "cost", 10_000_000, 9_990_000, 20_000, 16_500, "usd_micros")
SHOWN = {
    "entity": "user-1",
    "period": "day",
    "dimension": "cost",
    "limit": 10_000_000,
    "used": 9_990_000,
    "held": 20_000,
    "requested": 16_500,
    "unit": "usd_micros",
}


def told(error: SluiceError) -> tuple[int, str, dict[str, object], dict[str, str]]:
    problem = problem_of(error)
    assert json.loads(json.dumps(problem.members)) == problem.members
    return problem.status.value, problem.kind, dict(problem.members), dict(problem.headers)


def test_a_full_budget_says_when_it_begins_again_and_not_to_try_before() -> None:
    remedies = [Remedy("max_output_tokens", 300), Remedy("label", "economy")]
    assert told(BudgetExceeded([FULL], 1_800_000_000_007, remedies)) == (
        429,
        "budget-exceeded",
        {
            "resets_at": "2027-01-15T08:00:00.007Z",
            "violations": [SHOWN],
            "remedies": [{"kind": "max_output_tokens", "value": 300}, {"kind": "label", "value": "economy"}],
        },
        {"x-should-retry": "false"},
    )


def test_what_no_period_has_room_for_is_no_matter_of_waiting() -> None:
    status, kind, members, headers = told(NeverWithinBudget([FULL], [Remedy("label", "economy")]))
    assert (status, kind, headers) == (422, "never-admissible", {})
    assert members == {"violations": [SHOWN], "remedies": [{"kind": "label", "value": "economy"}]}


def test_a_missing_reserve_names_the_dimensions() -> None:
    assert told(ReserveRequired(["cost", "tokens"])) == (
        422,
        "reserve-required",
        {"dimensions": ["cost", "tokens"]},
        {},
    )
