"""A child process that serves one loopback port from a temporary folder of its own."""

import http.client
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from local.process import LOOPBACK, Cancelled, Child, LocalError, free_port, never, port_in_use

START_SECONDS: Final = 60.0
_PORT_ATTEMPTS: Final = 5
_POLL_SECONDS: Final = 0.05


class Command(NamedTuple):
    arguments: Sequence[str]
    environment: Mapping[str, str]


class Server:
    """Entering starts it and waits until it answers; leaving stops it with all it started and removes its folder."""

    def __init__(
        self,
        name: str,
        *,
        command: Callable[[int, Path], Command],
        answers: Callable[[int], bool],
        port: int | None = None,
        cancelled: Callable[[], bool] = never,
    ) -> None:
        self._name = name
        self._command = command
        self._answers = answers
        self._fixed_port = port
        self._cancelled = cancelled
        self._child: Child | None = None
        self._folder: Path | None = None
        self._port = 0

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def port(self) -> int:
        return self._port

    @property
    def folder(self) -> Path:
        if self._folder is None:
            raise LocalError(f"{self._name} is not running")
        return self._folder

    @property
    def pid(self) -> int:
        return self._running().pid

    def check(self) -> None:
        """Raises when it has died."""
        child = self._running()
        code = child.exit_code()
        if code is not None:
            raise LocalError(f"{self._name} stopped with exit code {code}. Its last lines:\n{child.tail()}")

    def stop(self) -> None:
        if self._child is not None:
            self._child.stop()
            self._child = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _start(self) -> None:
        if self._fixed_port is not None:
            if port_in_use(self._fixed_port):
                raise LocalError(f"port {self._fixed_port} is already in use; choose another with PORT=<number>")
            self._start_on(self._fixed_port)
            return
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            try:
                self._start_on(free_port())
            except LocalError:
                self.stop()
                # Between choosing a port and binding it somebody else may have taken it.
                if attempt == _PORT_ATTEMPTS or not port_in_use(self._port):
                    raise
            else:
                return

    def _start_on(self, port: int) -> None:
        self._port = port
        self._folder = Path(tempfile.mkdtemp(prefix="sluice-"))
        command = self._command(port, self._folder)
        self._child = Child(
            self._name,
            command.arguments,
            environment=command.environment,
            folder=self._folder,
            log=self._folder / "server.log",
        )
        self._child.start()
        deadline = time.monotonic() + START_SECONDS
        while not self._answers(port):
            self.check()
            if self._cancelled():
                raise Cancelled
            if time.monotonic() > deadline:
                raise LocalError(
                    f"{self._name} did not answer within {START_SECONDS:.0f} s. Its last lines:\n{self._child.tail()}"
                )
            time.sleep(_POLL_SECONDS)
        # What answered may be a stranger who took the port first.
        self.check()

    def _running(self) -> Child:
        if self._child is None:
            raise LocalError(f"{self._name} is not running")
        return self._child


class Answer(NamedTuple):
    status: int
    body: bytes


def loopback_get(port: int, path: str, *, timeout_seconds: float) -> Answer:
    return loopback_call(port, "GET", path, None, {}, timeout_seconds=timeout_seconds)


def loopback_call(
    port: int, method: str, path: str, body: bytes | None, headers: Mapping[str, str], *, timeout_seconds: float
) -> Answer:
    """Without urllib, which would ask the machine's proxy. Raises OSError when nobody answers."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=timeout_seconds)
    try:
        connection.request(method, path, body, dict(headers))
        response = connection.getresponse()
        return Answer(response.status, response.read())
    except http.client.HTTPException as error:
        raise OSError(f"not an HTTP answer: {error!r}") from error
    finally:
        connection.close()
