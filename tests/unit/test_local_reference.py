"""Where the reference engine can not be had, one plain line says why."""

from pathlib import Path

import pytest

from local import reference
from local.process import LocalError

KIT = "jdk.compiler@17\n"


@pytest.fixture
def nothing_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(reference, "_FOLDER", tmp_path / "dynamodb-local" / "1")
    return tmp_path


def set_java(monkeypatch: pytest.MonkeyPatch, *, version: str, modules: str = KIT) -> None:
    answers = {"--list-modules": modules, "-XshowSettings:properties": f"    java.specification.version = {version}\n"}
    monkeypatch.setattr("local.reference.shutil.which", lambda name: None if name == "mvn" else name)
    monkeypatch.setattr(reference, "_java", lambda *arguments: answers[arguments[0]])


def test_without_java(nothing_fetched: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(nothing_fetched))
    assert reference.fetch() == "Java is not installed"
    assert not reference.available()
    with pytest.raises(LocalError, match="Java is not installed"):
        reference.ReferenceEngine().__enter__()


@pytest.mark.parametrize(
    ("version", "modules", "reason"),
    [
        ("1.8", KIT, "Java 1.8 is installed and 17 or newer is needed"),
        ("11", KIT, "Java 11 is installed and 17 or newer is needed"),
        ("17", "java.base@17\n", "only a Java runtime is installed and a development kit is needed"),
        ("21", KIT, "Maven is not installed"),
    ],
)
def test_with_too_little(
    nothing_fetched: Path, monkeypatch: pytest.MonkeyPatch, version: str, modules: str, reason: str
) -> None:
    set_java(monkeypatch, version=version, modules=modules)
    assert reference.fetch() == reason


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo '[ERROR] host not found'; exit 1", "Maven could not fetch it: [ERROR] host not found"),
        ("exit 1", "Maven could not fetch it: no reason given"),
    ],
)
def test_when_maven_fails(nothing_fetched: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str) -> None:
    maven = nothing_fetched / "mvn"
    maven.write_text(f"#!/bin/sh\n{script}\n")
    maven.chmod(0o755)
    set_java(monkeypatch, version="17")
    monkeypatch.setattr("local.reference.shutil.which", lambda name: name)
    monkeypatch.setenv("PATH", str(nothing_fetched))
    assert reference.fetch() == reason
    assert not reference.available()
    assert list((nothing_fetched / "dynamodb-local").iterdir()) == []


def test_what_is_there_is_not_fetched_again(nothing_fetched: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_java(monkeypatch, version="17")  # and no Maven
    (nothing_fetched / "dynamodb-local" / "1").mkdir(parents=True)
    assert reference.fetch() is None
    assert reference.available()
