"""What `make run` prints, writes and refuses, without an engine."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from local import ROOT
from local.demo import Client, Demo
from local.deploy import Outputs, read_outputs
from local.engine import Endpoint
from local.process import LocalError
from local.run import (
    StopRequest,
    chosen_port,
    example_calls,
    introduction,
    outputs_file,
    outputs_text,
    write_outputs,
)

ENDPOINT = Endpoint("http://127.0.0.1:4566", "us-east-1", "123456789012")
STACKS = {
    "Sluice-local-Data": {
        "TableName": "the-table",
        "ArchiveBucketName": "the-bucket",
        "OperatorSecretArn": "the-secret",
        "ExportsOutputRef": "x",
    },
    "Sluice-local-Api": {"ApiId": "abc", "ApiUrl": "https://abc.example/"},
}
OUTPUTS = Outputs(
    api_url="http://127.0.0.1:4566/_aws/execute-api/abc/$default",
    table="the-table",
    archive_bucket="the-bucket",
    operator_secret="the-secret",
)
DEMO = Demo("demo", Client("org-id", "org-secret"), Client("app-id", "app-secret"))


def test_the_api_is_found_below_the_engine() -> None:
    assert read_outputs(STACKS, ENDPOINT.endpoint_url) == OUTPUTS


def test_missing_outputs_are_named() -> None:
    with pytest.raises(LocalError, match="no output ApiId, OperatorSecretArn, TableName"):
        read_outputs({"Sluice-local-Data": {"ArchiveBucketName": "b"}}, ENDPOINT.endpoint_url)


def test_the_file_has_the_fields_of_the_contract() -> None:
    assert json.loads(outputs_text(OUTPUTS, ENDPOINT, "the-key", DEMO)) == {
        "api_url": OUTPUTS.api_url,
        "console_url": None,
        "operator_key": "the-key",
        "endpoint_url": "http://127.0.0.1:4566",
        "region": "us-east-1",
        "table": "the-table",
        "archive_bucket": "the-bucket",
        "demo": {"org": "demo", "client_id": "org-id", "client_secret": "org-secret"},
    }


def test_the_file_is_for_its_owner_only(tmp_path: Path) -> None:
    written = tmp_path / "new" / "outputs.json"
    for text in ("{}", '{"again": 1}'):
        write_outputs(written, text)
        assert written.read_text() == text
        assert written.stat().st_mode & 0o777 == 0o600
    assert list(written.parent.iterdir()) == [written]


def test_the_printed_calls_survive_a_shell(tmp_path: Path) -> None:
    """Run by one, with a curl that writes down what it was called with and answers like the API."""
    curl = tmp_path / "curl"
    answer = json.dumps({"access_token": "a.b-c_d", "refresh_token": "e"}, separators=(",", ":"))
    curl.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" >> {tmp_path}/called\nprintf '%s' '{answer}'\n")
    curl.chmod(0o700)
    lines = example_calls(OUTPUTS, DEMO)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-ec", "\n".join(lines)], env=environment, check=True, capture_output=True)
    called = (tmp_path / "called").read_text().splitlines()
    json_header = ["-H", "content-type: application/json", "-d"]
    assert called[:2] == ["-s", f"{OUTPUTS.api_url}/v1/auth/token"]
    assert called[2:5] == json_header
    assert json.loads(called[5]) == {"client_id": "app-id", "client_secret": "app-secret"}
    assert called[6:10] == ["-i", "-H", "authorization: Bearer a.b-c_d", f"{OUTPUTS.api_url}/v1/acquire"]
    assert called[10:13] == json_header
    assert json.loads(called[13]) == {"entity": "user-1", "resource": "gpt-4", "consume": {"rpm": 1, "tpm": 500}}
    shown = introduction(OUTPUTS, ENDPOINT, DEMO, Path("outputs.json"))
    assert all(line in shown for line in lines)


@pytest.mark.parametrize(("environment", "port"), [({}, 4566), ({"PORT": ""}, 4566), ({"PORT": "8080"}, 8080)])
def test_the_port_comes_from_the_environment(environment: dict[str, str], port: int) -> None:
    assert chosen_port(environment) == port


@pytest.mark.parametrize("text", ["http", "0", "65536", "-1", "1.5", "٣"])
def test_a_port_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(LocalError, match="PORT must be a number from 1 to 65535"):
        chosen_port({"PORT": text})


def test_the_file_can_be_moved(tmp_path: Path) -> None:
    assert outputs_file({}) == ROOT / ".local" / "outputs.json"
    assert outputs_file({"SLUICE_OUTPUTS_FILE": str(tmp_path / "o.json")}) == tmp_path / "o.json"


def test_the_first_signal_is_remembered() -> None:
    stop = StopRequest()
    assert not stop()
    stop._remember(signal.SIGTERM, None)
    stop._remember(signal.SIGINT, None)
    assert stop()
    assert stop.number == signal.SIGTERM
