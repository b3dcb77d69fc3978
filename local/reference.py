"""The reference engine: AWS's own DynamoDB Local, in memory, on loopback, where Maven and a Java kit are at hand.

`python -m local.reference fetch` brings it; `... available` exits 0 when it can be started.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from local import ROOT
from local.engine import REGION, Endpoint, dynamodb_client
from local.process import LOOPBACK, Child, LocalError
from local.server import Command, Server

VERSION: Final = "2.6.1"
JAVA_VERSION: Final = 17
_FOLDER: Final = ROOT / ".cache" / "dynamodb-local" / VERSION
_LAUNCHER: Final = ROOT / "local" / "LoopbackDynamoDB.java"
_FETCH_SECONDS: Final = 300.0
_POM: Final = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId>
  <artifactId>reference-engine</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>com.amazonaws</groupId>
      <artifactId>DynamoDBLocal</artifactId>
      <version>{VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""


def missing_java() -> str | None:
    """Why it can not run here, or None. The launcher is a source file, so a mere runtime is not enough."""
    if shutil.which("java") is None:
        return "Java is not installed"
    settings = _java("-XshowSettings:properties", "-version")
    found = [line.split("=")[1].strip() for line in settings.splitlines() if "java.specification.version =" in line]
    if not found:
        return "java does not start"
    if float(found[0]) < JAVA_VERSION:
        return f"Java {found[0]} is installed and {JAVA_VERSION} or newer is needed"
    if "jdk.compiler@" not in _java("--list-modules"):
        return "only a Java runtime is installed and a development kit is needed"
    return None


def available() -> bool:
    return _FOLDER.is_dir() and missing_java() is None


def fetch() -> str | None:
    """Brings the jar files, once. Why not, or None when they are there."""
    reason = missing_java()
    if reason is not None:
        return reason
    if _FOLDER.is_dir():
        return None
    if shutil.which("mvn") is None:
        return "Maven is not installed"
    _FOLDER.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_FOLDER.parent, prefix="fetch-") as name:
        folder = Path(name)
        jars = folder / "jars"
        (folder / "pom.xml").write_text(_POM)
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
        command = Child(
            "Maven",
            ["mvn", "--batch-mode", "--quiet", *goal],
            environment=os.environ,  # Maven's settings of this machine: proxy, mirror, trust store
            folder=folder,
            log=folder / "maven.log",
        )
        try:
            with command:
                if command.wait(timeout_seconds=_FETCH_SECONDS) != 0:
                    errors = [line.strip() for line in command.tail().splitlines() if "[ERROR]" in line]
                    return f"Maven could not fetch it: {(errors or ['no reason given'])[0][:300]}"
        except LocalError:
            return f"Maven was not done after {_FETCH_SECONDS:.0f} s"
        if not _FOLDER.is_dir():  # another fetch may have been quicker
            jars.rename(_FOLDER)  # complete or not there
    return None


class ReferenceEngine:
    """`with ReferenceEngine() as reference:` starts it on a free port, empty."""

    def __init__(self) -> None:
        self._server = Server("the reference engine", command=_command, answers=_is_ready)

    def __enter__(self) -> Self:
        if not available():
            raise LocalError(f"the reference engine can not be used: {missing_java() or 'run `make reference-engine`'}")
        self._server.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop()

    @property
    def endpoint(self) -> Endpoint:
        return _endpoint(self._server.port)

    @property
    def pid(self) -> int:
        return self._server.pid


def _endpoint(port: int) -> Endpoint:
    return Endpoint(f"http://{LOOPBACK}:{port}", REGION, "local")


def _command(port: int, folder: Path) -> Command:
    # The native SQLite library lies among the jar files.
    arguments = ["java", "-Xmx1g", f"-Djava.io.tmpdir={folder}", f"-Djava.library.path={_FOLDER}"]
    arguments += ["-cp", f"{_FOLDER}/*", str(_LAUNCHER), str(port)]
    environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(folder), "TMPDIR": str(folder)}
    if "JAVA_HOME" in os.environ:
        environment["JAVA_HOME"] = os.environ["JAVA_HOME"]
    return Command(arguments, environment)


def _is_ready(port: int) -> bool:
    once = Config(connect_timeout=2, read_timeout=10, retries={"total_max_attempts": 1})
    try:
        dynamodb_client(_endpoint(port), once).list_tables()
    except (BotoCoreError, ClientError):
        return False
    return True


def _java(*arguments: str) -> str:
    answer = subprocess.run(["java", *arguments], capture_output=True, text=True, check=False)
    return answer.stdout + answer.stderr


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m local.reference")
    parser.add_argument("action", choices=["fetch", "available"])
    if parser.parse_args().action == "available":
        return 0 if available() else 1
    reason = fetch()
    if reason is not None:
        print(f"reference engine (DynamoDB Local): not available, {reason}")
    else:
        print(f"reference engine (DynamoDB Local {VERSION}): ready")
    return 0


if __name__ == "__main__":
    sys.exit(main())
