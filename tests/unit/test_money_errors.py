"""What is told about money, and under which targets changes of it stand in the audit."""

from sluice.core.audit import override_target, price_target
from sluice.core.errors import AllQuotasExceeded, NoTotals, PriceMissing, RequestIdConflict, SpentLabel, UnknownLabel
from sluice.edge.problems import problem_of


def test_each_refusal_is_a_problem_of_its_own() -> None:
    spent = AllQuotasExceeded(1_000, 400, [SpentLabel("premium", 10, 10)])
    kinds = {
        RequestIdConflict(): (409, "request-id-conflict"),
        PriceMissing("model m"): (422, "price-missing"),
        UnknownLabel("label", "is not known"): (422, "unknown-label"),
        NoTotals(): (422, "no-totals"),
        spent: (429, "all-quotas-exceeded"),
    }
    for error, (status, kind) in kinds.items():
        problem = problem_of(error)
        assert (problem.status, problem.kind) == (status, kind)
    assert "model m" in str(PriceMissing("model m"))
    shown = problem_of(spent)
    assert shown.members["labels"] == [{"label": "premium", "spent_usd_micros": 10, "quota_usd_micros": 10}]
    assert shown.headers["retry-after-ms"] == "400"


def test_targets_are_paths_of_the_api() -> None:
    assert override_target("app-1") == "selection/override?entity=app-1"
    assert price_target("model-1") == "prices?model_id=model-1"
