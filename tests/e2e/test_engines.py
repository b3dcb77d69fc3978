"""The engines themselves: loopback only, apart from one another, gone when stopped.

`make test-reference` runs these as well.
"""

import os
import signal
from pathlib import Path

import pytest

from local.engine import Engine, dynamodb_client
from local.process import LocalError, port_in_use
from local.table import create_table
from tests.e2e.processes import alive, descendants, listening_addresses
from tests.engines import chosen_engine


def test_it_has_the_table_and_leaves_nothing() -> None:
    with chosen_engine() as engine:
        port = int(engine.endpoint.endpoint_url.rsplit(":", 1)[1])
        client = dynamodb_client(engine.endpoint)
        create_table(client, "sluice")
        described = client.describe_table(TableName="sluice")["Table"]
        projections = {
            index["IndexName"]: index["Projection"]["ProjectionType"] for index in described["GlobalSecondaryIndexes"]
        }
        assert projections == {"GSI1": "ALL", "GSI2": "KEYS_ONLY", "GSI3": "KEYS_ONLY", "GSI4": "KEYS_ONLY"}
        assert described["StreamSpecification"] == {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}
        ttl = client.describe_time_to_live(TableName="sluice")["TimeToLiveDescription"]
        assert ttl == {"TimeToLiveStatus": "ENABLED", "AttributeName": "ttl"}
        processes = {engine.pid} | descendants(engine.pid)
    assert alive(processes) == set()
    assert not port_in_use(port)


def test_it_counts_capacity_by_index() -> None:
    with chosen_engine() as engine:
        client = dynamodb_client(engine.endpoint)
        create_table(client, "sluice")
        item = {name: {"S": name} for name in ("PK", "SK", "GSI1PK", "GSI1SK")}
        consumed = client.put_item(TableName="sluice", Item=item, ReturnConsumedCapacity="INDEXES")["ConsumedCapacity"]
    assert consumed["CapacityUnits"] == 2
    assert consumed["Table"]["CapacityUnits"] == 1
    assert consumed["GlobalSecondaryIndexes"]["GSI1"]["CapacityUnits"] == 1


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="the sockets of a process are read from /proc")
def test_it_listens_on_loopback_only() -> None:
    with chosen_engine() as engine:
        assert listening_addresses({engine.pid} | descendants(engine.pid)) == {"127.0.0.1"}


def test_two_engines_know_nothing_of_each_other() -> None:
    with Engine() as first, Engine() as second:
        create_table(dynamodb_client(first.endpoint), "sluice")
        assert dynamodb_client(second.endpoint).list_tables()["TableNames"] == []
        assert first.endpoint.access_key != second.endpoint.access_key
        assert first.folder != second.folder


def test_a_death_while_it_runs_is_noticed() -> None:
    with Engine() as engine:
        folder = engine.folder
        os.kill(engine.pid, signal.SIGKILL)
        os.waitid(os.P_PID, engine.pid, os.WEXITED | os.WNOWAIT)  # dead, and still to be noticed
        with pytest.raises(LocalError, match="the local engine stopped with exit code -9"):
            engine.check()
    assert not folder.exists()
