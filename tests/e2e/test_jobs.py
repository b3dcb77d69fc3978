"""The scheduled function of the deployed stacks: it starts by itself, finds the job and does it."""

import time

from local.deploy import Outputs
from local.engine import Engine, dynamodb_client
from sluice.repository.retries import Retries
from sluice.repository.store import DynamoStore
from sluice.services.daily import MERGE_SHARDS
from sluice.services.effects import Effects
from sluice.services.jobs import Jobs
from sluice.shell import clock_ms, new_token
from tests.e2e.api import Api
from tests.e2e.conftest import ORG
from tests.e2e.test_purge import namespace_of
from tests.fakes import CountingMeter, never_random

# Generous: it starts every minute, and only a function that never runs can reach this.
DONE_SECONDS = 300


def test_a_queued_job_is_done_within_minutes(deployed_engine: tuple[Engine, Outputs], api: Api) -> None:
    engine, outputs = deployed_engine
    meter = CountingMeter()
    retries = Retries(lambda ms: time.sleep(ms / 1000), never_random, meter)
    store = DynamoStore(dynamodb_client(engine.endpoint), outputs.table, retries)
    jobs = Jobs(store, Effects(clock_ms, never_random, new_token, meter))
    job = jobs.start(namespace_of(engine, outputs, ORG), MERGE_SHARDS, {})
    deadline = time.monotonic() + DONE_SECONDS
    while (shown := api.call("GET", f"/v1/jobs/{job.job_id}")).json()["state"] in {"queued", "running"}:
        assert shown.status == 200
        assert time.monotonic() < deadline, shown.body
        time.sleep(1)
    done = shown.json()
    assert (done["state"], done["error"]) == ("done", None)
    assert done["result"]["unreadable"] == 0
    # The newest comes first, whatever other tests have started.
    assert api.call("GET", "/v1/jobs").json()["items"][0]["id"] == job.job_id
