"""What `make run` prints, writes and refuses, without an engine."""

import json
import shlex
import signal
from pathlib import Path

import pytest

from local import ROOT
from local.deploy import Outputs, read_outputs
from local.engine import Endpoint
from local.process import LocalError
from local.run import StopRequest, chosen_port, example_call, introduction, outputs_file, outputs_text

ENDPOINT = Endpoint("http://127.0.0.1:4566", "us-east-1", "123456789012")
STACKS = {
    "Sluice-local-Data": {"TableName": "the-table", "ArchiveBucketName": "the-bucket", "ExportsOutputRef": "x"},
    "Sluice-local-Api": {"ApiId": "abc", "ApiUrl": "https://abc.example/"},
}
OUTPUTS = Outputs(
    api_url="http://127.0.0.1:4566/_aws/execute-api/abc/$default", table="the-table", archive_bucket="the-bucket"
)


def test_the_api_is_found_below_the_engine() -> None:
    assert read_outputs(STACKS, ENDPOINT.endpoint_url) == OUTPUTS


def test_missing_outputs_are_named() -> None:
    with pytest.raises(LocalError, match="no output ApiId, TableName"):
        read_outputs({"Sluice-local-Data": {"ArchiveBucketName": "b"}}, ENDPOINT.endpoint_url)


def test_the_file_has_the_fields_of_the_contract() -> None:
    assert json.loads(outputs_text(OUTPUTS, ENDPOINT)) == {
        "api_url": OUTPUTS.api_url,
        "console_url": None,
        "operator_key": None,
        "endpoint_url": "http://127.0.0.1:4566",
        "region": "us-east-1",
        "table": "the-table",
        "archive_bucket": "the-bucket",
        "demo": None,
    }


def test_the_printed_call_survives_a_shell() -> None:
    words = shlex.split(example_call(OUTPUTS))
    assert words[:3] == ["curl", "-i", f"{OUTPUTS.api_url}/v1/acquire"]
    assert json.loads(words[-1]) == {"entity": "user-1", "resource": "gpt-4", "consume": {"rpm": 1, "tpm": 500}}
    assert "'http" in example_call(OUTPUTS)
    assert example_call(OUTPUTS) in introduction(OUTPUTS, ENDPOINT, Path("outputs.json"))


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
