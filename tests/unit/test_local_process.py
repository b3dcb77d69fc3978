"""Children are stopped with all they started, and their failures are told in words."""

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from local.process import LOOPBACK, Cancelled, Child, LocalError, free_port, port_in_use

HANG_SECONDS = 60


def python(folder: Path, code: str) -> Child:
    return Child("the program", [sys.executable, "-c", code], environment={}, folder=folder, log=folder / "program.log")


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def runs(pid: int) -> bool:
    """False also for one that is dead and not collected: in a container nobody may collect orphans."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not (stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] == "Z")


def test_its_exit_code_and_last_lines_are_known(tmp_path: Path) -> None:
    with python(tmp_path, "print('one'); print('two'); raise SystemExit(3)") as child:
        assert child.wait(timeout_seconds=HANG_SECONDS) == 3
        assert child.tail() == "    one\n    two"


def test_it_sees_only_the_environment_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "a person's own")
    with python(tmp_path, "import os; print(os.environ.get('AWS_PROFILE'))") as child:
        assert child.wait(timeout_seconds=HANG_SECONDS) == 0
        assert child.tail() == "    None"


def test_a_program_that_is_missing_is_named(tmp_path: Path) -> None:
    child = Child("the tool", ["./missing"], environment={}, folder=tmp_path, log=tmp_path / "log")
    with pytest.raises(LocalError, match="the tool could not be started"):
        child.start()
    child.stop()


def test_stopping_reaches_what_it_started_and_what_ignores_the_wish(tmp_path: Path) -> None:
    code = """
import pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path("worker").write_text(f"{worker.pid}\\n")
time.sleep(600)
"""
    written = tmp_path / "worker"
    with python(tmp_path, code) as child:
        wait_for(lambda: written.exists() and written.read_text().endswith("\n"))
        worker = int(written.read_text())
        leader = child.pid
        assert runs(worker)
        child.stop(grace_seconds=0.2)
        wait_for(lambda: not runs(leader) and not runs(worker))
        child.stop()  # a second time changes nothing
    with pytest.raises(LocalError, match="not running"):
        child.exit_code()


def test_a_worker_that_outlives_its_leader_is_stopped(tmp_path: Path) -> None:
    code = """
import pathlib, subprocess, sys
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path("worker").write_text(str(worker.pid))
"""
    with python(tmp_path, code) as child:
        assert child.wait(timeout_seconds=HANG_SECONDS) == 0
        worker = int((tmp_path / "worker").read_text())
        assert runs(worker)
    wait_for(lambda: not runs(worker))


def test_a_signal_to_this_process_group_does_not_reach_it(tmp_path: Path) -> None:
    with python(tmp_path, "import time; time.sleep(600)") as child:
        assert os.getpgid(child.pid) == child.pid != os.getpgid(0)


def test_waiting_can_be_cancelled_and_is_bounded(tmp_path: Path) -> None:
    with python(tmp_path, "import time; time.sleep(600)") as child:
        with pytest.raises(Cancelled):
            child.wait(timeout_seconds=HANG_SECONDS, cancelled=lambda: True)
        with pytest.raises(LocalError, match=r"was not done after 0 s. Its last lines:\n    \(it printed nothing\)"):
            child.wait(timeout_seconds=0.01)
        os.kill(child.pid, signal.SIGKILL)
        assert child.wait(timeout_seconds=HANG_SECONDS) == -signal.SIGKILL


def test_a_port_is_in_use_when_bound_and_free_afterwards() -> None:
    with socket.socket() as holder:
        holder.bind((LOOPBACK, 0))
        port = holder.getsockname()[1]
        assert port_in_use(port)  # held silently
        holder.listen()
        assert port_in_use(port)
    assert not port_in_use(port)
    assert 1_024 <= free_port() <= 65_535
