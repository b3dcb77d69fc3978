"""A server is ready when it answers, and a failed start leaves nothing."""

import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from local.engine import engine_environment
from local.process import LOOPBACK, Cancelled, LocalError, free_port
from local.server import Command, Server, loopback_get

SERVE = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"ok")
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
Make = Callable[..., Server]


@pytest.fixture
def folders() -> list[Path]:
    return []


@pytest.fixture
def make(folders: list[Path]) -> Make:
    def command_of(code: str) -> Callable[[int, Path], Command]:
        def command(port: int, folder: Path) -> Command:
            folders.append(folder)
            return Command([sys.executable, "-c", code, str(port)], {})

        return command

    def answers(port: int) -> bool:
        try:
            return loopback_get(port, "/", timeout_seconds=2).status == 200
        except OSError:
            return False

    def made(code: str = SERVE, *, port: int | None = None, cancelled: Callable[[], bool] = lambda: False) -> Server:
        return Server("the server", command=command_of(code), answers=answers, port=port, cancelled=cancelled)

    return made


def test_it_answers_while_it_runs_and_its_folder_goes_with_it(make: Make, folders: list[Path]) -> None:
    with make() as server:
        assert loopback_get(server.port, "/", timeout_seconds=10).body == b"ok"
        assert server.folder == folders[0]
        assert server.folder.is_dir()
        server.check()
    assert not folders[0].exists()
    with pytest.raises(LocalError, match="the server is not running"):
        server.check()
    with pytest.raises(LocalError, match="the server is not running"):
        _ = server.folder


def test_an_early_death_shows_its_last_lines(make: Make, folders: list[Path]) -> None:
    server = make("raise SystemExit('the disk is on fire')", port=free_port())
    with pytest.raises(LocalError, match=r"stopped with exit code 1\. Its last lines:\n    the disk is on fire"):
        server.__enter__()
    assert not folders[0].exists()


def test_an_early_death_on_a_chosen_port_is_not_tried_again(make: Make, folders: list[Path]) -> None:
    with pytest.raises(LocalError, match="stopped with exit code 1"):
        make("raise SystemExit(1)").__enter__()
    assert len(folders) == 1


def test_a_port_taken_meanwhile_is_replaced(make: Make, folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as holder:
        holder.bind((LOOPBACK, 0))  # answers nobody, so that the start fails
        taken = holder.getsockname()[1]
        choices = iter([taken, free_port()])
        monkeypatch.setattr("local.server.free_port", lambda: next(choices))
        with make() as server:
            assert server.port != taken
    assert [folder.exists() for folder in folders] == [False, False]


def test_a_given_port_in_use_is_named_and_nothing_is_started(make: Make, folders: list[Path]) -> None:
    with socket.socket() as holder:
        holder.bind((LOOPBACK, 0))
        port = holder.getsockname()[1]
        with pytest.raises(LocalError, match=f"port {port} is already in use; choose another with PORT="):
            make(port=port).__enter__()
    assert folders == []


def test_a_start_can_be_cancelled(make: Make, folders: list[Path]) -> None:
    with pytest.raises(Cancelled):
        make("import time; time.sleep(600)", cancelled=lambda: True).__enter__()
    assert not folders[0].exists()


def test_a_start_is_bounded(make: Make, folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("local.server.START_SECONDS", 0.0)
    with pytest.raises(LocalError, match="did not answer within 0 s"):
        make("import time; time.sleep(600)", port=free_port()).__enter__()
    assert not folders[0].exists()


def test_the_engine_inherits_nothing_of_the_person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "PYTHONPATH", "http_proxy"):
        monkeypatch.setenv(name, "a person's own")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a person's own")
    monkeypatch.setenv("DOCKER_HOST", "a person's own")
    environment = engine_environment(port=1, folder=tmp_path, account="123456789012")
    assert "a person's own" not in environment.values()
    assert environment["BIND_HOST"] == LOOPBACK
    assert {environment[name] for name in ("HOME", "TMPDIR")} == {str(tmp_path)}
