"""`make run`: ready as it says, and gone without a trace, however it ends."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from local import ROOT
from local.process import LOOPBACK, free_port, port_in_use
from tests.e2e.api import Api
from tests.e2e.processes import alive, children, descendants

# Generous bounds that only a hang can reach; no test depends on how fast anything is.
READY_SECONDS = 300
STOP_SECONDS = 60


class Run:
    """One `make run` under test, with all that it writes below a folder."""

    def __init__(self, folder: Path, *arguments: str, port: str, **environment: str) -> None:
        self.outputs_file = folder / "outputs.json"
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.printed_file = folder / "printed"
        own = {"PORT": port, "SLUICE_OUTPUTS_FILE": str(self.outputs_file), "TMPDIR": str(self.temporary)}
        with self.printed_file.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "local.run", *arguments],
                cwd=ROOT,
                env={**os.environ, **own, **environment},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def printed(self) -> str:
        return self.printed_file.read_text()

    def wait_until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not condition():
            assert self.process.poll() is None, self.printed
            assert time.monotonic() < deadline, self.printed
            time.sleep(0.05)

    def exit_code(self) -> int:
        return self.process.wait(timeout=READY_SECONDS)

    def stop(self, number: signal.Signals) -> tuple[int, set[int]]:
        """Its exit code, and which of the processes it had at the signal are still there."""
        started = descendants(self.process.pid)
        assert started, "it should have had children"
        self.process.send_signal(number)
        return self.process.wait(timeout=STOP_SECONDS), alive(started)

    def traces(self) -> list[Path]:
        """What is left on disk."""
        return [path for path in [self.outputs_file, *self.temporary.iterdir()] if path.exists()]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def started(*arguments: str, port: str, **environment: str) -> Run:
        runs.append(Run(tmp_path, *arguments, port=port, **environment))
        return runs[-1]

    yield started
    for run in runs:  # only a failed test leaves one
        if run.process.poll() is None:
            run.process.terminate()
            run.process.wait(timeout=STOP_SECONDS)


def test_it_serves_what_it_prints_and_stops_on_sigterm(start: Callable[..., Run]) -> None:
    port = free_port()
    run = start(port=str(port))
    run.wait_until(run.outputs_file.exists)
    outputs = json.loads(run.outputs_file.read_text())
    assert outputs.keys() == {
        *("api_url", "console_url", "operator_key", "endpoint_url", "region", "table", "archive_bucket", "demo")
    }
    assert outputs["endpoint_url"] == f"http://{LOOPBACK}:{port}"
    assert run.outputs_file.stat().st_mode & 0o777 == 0o600
    run.wait_until(lambda: "Ctrl-C stops" in run.printed)

    body = {"entity": "user-1", "resource": "gpt-4", "consume": {"rpm": 1, "tpm": 500}}
    assert json.dumps(body) in run.printed
    # The app's login and its calls, as a person would paste them.
    lines = [line.strip() for line in run.printed.splitlines() if "curl " in line]
    assert len(lines) == 4
    login = re.search(r"-d '(\{.*?\})'", lines[0])
    assert login is not None
    nobody = Api(outputs["api_url"])
    app = nobody.logged_in(json.loads(login[1]))
    answer = app.call("POST", "/v1/acquire", body)
    assert answer.status == 201, answer.body
    assert [level["entity"] for level in answer.json()["levels"]] == ["user-1", "demo-app"]
    usage = re.search(r"-d '(\{.*?\})'", lines[2])
    assert usage is not None
    for duplicate in (False, True):
        counted = app.call("POST", "/v1/usage", json.loads(usage[1]))
        assert counted.status == 202, counted.body
        assert (counted.json()["cost_usd_micros"], counted.json()["duplicate"]) == (16_500, duplicate)
    selected = app.call("GET", "/v1/selection").json()
    assert (selected["label"], selected["prices"]["source"]) == ("premium", "shipped")
    if shutil.which("curl") is not None:
        pasted = subprocess.run(["sh", "-ec", "\n".join(lines)], capture_output=True, text=True, check=True)
        assert re.findall(r"^(?:.*})?HTTP/1.1 (\d+)", pasted.stdout, re.MULTILINE) == ["201", "202", "200"]

    demo = outputs["demo"]
    assert demo["org"] == "demo"
    assert nobody.logged_in(demo).call("GET", "/v1/whoami").json()["role"] == "org"
    operator = Api(outputs["api_url"], {"x-api-key": outputs["operator_key"]})
    assert [org["org"] for org in operator.call("GET", "/v1/orgs").json()["items"]] == ["demo"]

    assert run.stop(signal.SIGTERM) == (0, set())
    assert not port_in_use(port)
    assert run.traces() == []


def test_it_stops_on_ctrl_c(start: Callable[..., Run], assembly: Path) -> None:
    run = start("--assembly", str(assembly), port=str(free_port()))
    run.wait_until(run.outputs_file.exists)
    assert run.stop(signal.SIGINT) == (0, set())
    assert run.traces() == []


@pytest.mark.parametrize(
    ("arguments", "program"), [((), "cdk synth"), (("--assembly",), "cdk deploy")], ids=["synth", "deploy"]
)
def test_a_signal_before_it_is_ready_stops_the_cdk_as_well(
    start: Callable[..., Run], assembly: Path, arguments: tuple[str, ...], program: str
) -> None:
    run = start(*arguments, *([str(assembly)] if arguments else []), port=str(free_port()))
    log = f"*/{program.replace(' ', '-')}.log"
    run.wait_until(lambda: any(run.temporary.glob(log)))
    code, left = run.stop(signal.SIGTERM)
    assert (code, left) == (128 + signal.SIGTERM, set())
    assert "stopped before it was ready" in run.printed
    assert run.traces() == []


def test_a_port_in_use_is_named(start: Callable[..., Run]) -> None:
    with socket.socket() as holder:
        holder.bind((LOOPBACK, 0))
        holder.listen()
        port = holder.getsockname()[1]
        run = start(port=str(port))
        assert run.exit_code() == 1
    assert f"port {port} is already in use" in run.printed
    assert "Traceback" not in run.printed
    assert run.traces() == []


def test_a_port_that_is_no_number_is_named(start: Callable[..., Run]) -> None:
    run = start(port="http")
    assert run.exit_code() == 1
    assert "PORT must be a number" in run.printed


def test_a_missing_node_is_named(start: Callable[..., Run], tmp_path: Path) -> None:
    run = start(port=str(free_port()), PATH=str(tmp_path))
    assert run.exit_code() == 1
    assert "Node is not installed" in run.printed
    assert run.traces() == []


def test_a_failed_deploy_shows_why(start: Callable[..., Run], tmp_path: Path) -> None:
    empty = tmp_path / "no-assembly"
    empty.mkdir()
    run = start("--assembly", str(empty), port=str(free_port()))
    assert run.exit_code() == 1
    assert "failed with exit code 1. Its last lines:" in run.printed
    assert "Traceback" not in run.printed
    assert run.traces() == []


def test_an_engine_that_dies_ends_the_run(start: Callable[..., Run], assembly: Path) -> None:
    run = start("--assembly", str(assembly), port=str(free_port()))
    run.wait_until(run.outputs_file.exists)
    started = descendants(run.process.pid)
    (engine,) = children(run.process.pid)
    os.kill(engine, signal.SIGKILL)
    assert run.exit_code() == 1
    assert "the local engine stopped with exit code -9" in run.printed
    assert alive(started) == set()
    assert run.traces() == []
