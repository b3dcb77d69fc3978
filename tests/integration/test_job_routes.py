"""Jobs over HTTP, event in and answer out, on moto."""

from collections.abc import Iterator
from types import ModuleType

import pytest

from sluice.repository.jobs import Job
from sluice.services.jobs import Step
from sluice.shell import Environment, Services, build_services, make_client
from tests.fakes import CountingMeter
from tests.http import TABLE, Call, caller_of, deployed

JOBS = "/v1/jobs"


@pytest.fixture
def handler_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    with deployed("control_plane.handler", monkeypatch) as module:
        yield module


@pytest.fixture
def call(handler_module: ModuleType) -> Call:
    return caller_of(handler_module, "GET", JOBS)


@pytest.fixture
def services(handler_module: ModuleType) -> Services:
    environment = Environment("test", TABLE, 2000)
    return build_services(environment, make_client(environment), CountingMeter())


class Once:
    def step(self, _job: Job) -> Step:
        return Step(3, None, 5, {"nested": {"a": [1, None]}, "text": "x"})


class Broken:
    def step(self, _job: Job) -> Step:
        raise ValueError("the secret of ns")


def run(services: Services) -> None:
    services.jobs.run_open({"once": Once(), "broken": Broken()}, lambda: False)


def test_a_job_is_shown_from_its_start_to_its_end(call: Call, services: Services) -> None:
    job = services.jobs.start("default", "once", {"hidden": 1})
    queued = call("GET", f"{JOBS}/{job.job_id}")
    assert queued.status == 200
    assert queued.body == {
        "id": job.job_id,
        "kind": "once",
        "state": "queued",
        "done": 0,
        "total": None,
        "error": None,
        "result": None,
        "started_at": None,
        "ended_at": None,
    }
    run(services)
    done = call("GET", f"{JOBS}/{job.job_id}").body
    assert (done["state"], done["done"], done["total"]) == ("done", 3, 5)
    assert done["result"] == {"nested": {"a": [1, None]}, "text": "x"}
    assert done["started_at"].endswith("Z")
    assert done["ended_at"] >= done["started_at"]


def test_a_failed_job_names_the_kind_of_error_only(call: Call, services: Services) -> None:
    job = services.jobs.start("default", "broken", {})
    run(services)
    failed = call("GET", f"{JOBS}/{job.job_id}").body
    assert (failed["state"], failed["error"]) == ("failed", "ValueError")
    assert "secret" not in str(failed)


def test_jobs_of_others_are_not_there(call: Call, services: Services) -> None:
    foreign = services.jobs.start("elsewhere", "once", {})
    of_registry = services.jobs.start("default", "once", {}, registry=True)
    for job_id in (foreign.job_id, of_registry.job_id, "nothing"):
        assert call("GET", f"{JOBS}/{job_id}").problem == "not-found"
    assert call("GET", JOBS).body == {"items": [], "next_cursor": None}


@pytest.mark.parametrize("job_id", ["_", "-x", "x" * 129, "a%23b", "a b"])
def test_an_id_that_none_can_have(call: Call, job_id: str) -> None:
    answer = call("GET", f"{JOBS}/{job_id}")
    assert answer.status in {400, 404}
    assert answer.problem in {"invalid-request", "not-found"}


def test_jobs_are_listed_page_by_page(call: Call, services: Services) -> None:
    started = {services.jobs.start("default", "once", {}).job_id for _ in range(5)}
    services.jobs.start("elsewhere", "once", {})
    listed = []
    cursor: dict[str, str] = {}
    for size in (2, 2, 1):
        page = call("GET", JOBS, query={"limit": "2", **cursor})
        assert (page.status, len(page.body["items"])) == (200, size)
        listed += [job["id"] for job in page.body["items"]]
        cursor = {"cursor": page.body["next_cursor"]}
    assert cursor == {"cursor": None}
    assert listed == sorted(started, reverse=True)
    assert len(call("GET", JOBS).body["items"]) == 5


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"limit": "0"}, "limit"),
        ({"limit": "101"}, "limit"),
        ({"limit": "x"}, "limit"),
        ({"cursor": "forged"}, "cursor"),
    ],
)
def test_a_page_that_can_not_be(call: Call, query: dict[str, str], field: str) -> None:
    answer = call("GET", JOBS, query=query)
    assert answer.problem == "invalid-request"
    assert field in answer.body["field"]


def test_a_cursor_of_another_list_opens_nothing(call: Call, services: Services) -> None:
    for number in range(3):
        services.jobs.start("default", "once", {})
        call("PUT", f"/v1/entities/e{number}", {})
    cursor = call("GET", "/v1/entities", query={"limit": "1"}).body["next_cursor"]
    assert call("GET", JOBS, query={"cursor": cursor}).body["field"] == "cursor"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
@pytest.mark.parametrize("path", [JOBS, f"{JOBS}/x"])
def test_jobs_are_only_read_here(call: Call, method: str, path: str) -> None:
    assert call(method, path, {}).problem == "method-not-allowed"
