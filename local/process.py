"""Child processes that are always stopped, and ports.

Every child gets a session of its own: a Ctrl-C in the terminal reaches only this program, which then stops its
children in order, and whatever a child started (Lambda workers, node) is stopped with it as one process group.
"""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

LOOPBACK: Final = "127.0.0.1"
TAIL_LINES: Final = 25
_TAIL_BYTES: Final = 16_384
_POLL_SECONDS: Final = 0.05
_GONE_SECONDS: Final = 0.5


class LocalError(Exception):
    """Something a person can act on: its text is the whole message, no traceback is needed."""


class Cancelled(Exception):
    """The person asked to stop while a step was still running."""


def never() -> bool:
    return False


def free_port() -> int:
    """A loopback port that was free a moment ago; whoever binds it must be ready to lose the race."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def port_in_use(port: int) -> bool:
    """Connects, which sees a listener on every interface on all systems, and binds, which sees a port held silently."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        if probe.connect_ex((LOOPBACK, port)) == 0:
            return True
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return True
    return False


class Child:
    """One started program: its output goes to a log file, and leaving the context stops its whole process group."""

    def __init__(
        self, name: str, arguments: Sequence[str], *, environment: Mapping[str, str], folder: Path, log: Path
    ) -> None:
        self.name = name
        self.log = log
        self._arguments = list(arguments)
        self._environment = dict(environment)
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        with self.log.open("ab") as output:
            try:
                self._process = subprocess.Popen(
                    self._arguments,
                    env=self._environment,
                    cwd=self._folder,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise LocalError(f"{self.name} could not be started: {error}") from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._started().pid

    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._started().poll()

    def tail(self) -> str:
        """The last lines of its log, for a message to a person."""
        try:
            with self.log.open("rb") as log:
                log.seek(0, os.SEEK_END)
                log.seek(max(0, log.tell() - _TAIL_BYTES))
                lines = log.read().decode(errors="replace").splitlines()
        except FileNotFoundError:
            lines = []
        return "\n".join(f"    {line}" for line in lines[-TAIL_LINES:]) or "    (it printed nothing)"

    def wait(self, *, timeout_seconds: float, cancelled: Callable[[], bool] = never) -> int:
        """Its exit code. Polls, so that a signal handler needs to do no more than to set a flag."""
        deadline = time.monotonic() + timeout_seconds
        while (code := self.exit_code()) is None:
            if cancelled():
                raise Cancelled
            if time.monotonic() > deadline:
                raise LocalError(
                    f"{self.name} was not done after {timeout_seconds:.0f} s. Its last lines:\n{self.tail()}"
                )
            time.sleep(_POLL_SECONDS)
        return code

    def stop(self, *, grace_seconds: float = 5.0) -> None:
        """Terminate, then kill what is left of the group; safe to call twice and on a child that is already gone."""
        process = self._process
        if process is None:
            return
        _signal_group(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=grace_seconds)
        # Also when the leader left by itself: its workers may have outlived it.
        _signal_group(process.pid, signal.SIGKILL)
        process.wait()
        _wait_until_gone(process.pid)
        self._process = None

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise LocalError(f"{self.name} is not running")
        return self._process


def _signal_group(group: int, number: int) -> bool:
    """Whether anybody was there to hear it; number 0 only asks."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):  # macOS answers EPERM for a group of zombies
        return False
    return True


def _wait_until_gone(group: int) -> None:
    """A killed process holds its port for an instant. Bounded: where nobody reaps orphans, a zombie stays for good."""
    deadline = time.monotonic() + _GONE_SECONDS
    while time.monotonic() < deadline and _signal_group(group, 0):
        time.sleep(_POLL_SECONDS)
