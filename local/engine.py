"""The local engine: ministack in a virtual environment of its own, on loopback, in a folder that goes away with it."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, Self

import boto3
from botocore.config import Config
from mypy_boto3_dynamodb import DynamoDBClient

from local import ROOT
from local.process import LOOPBACK, LocalError, never
from local.server import Command, Server, loopback_get

REGION: Final = "us-east-1"
# Required by the clients; the engine verifies no signature.
SECRET_KEY: Final = "local"  # noqa: S105 - opens nothing but an engine on loopback
_PYTHON: Final = ROOT / ".engine" / "venv" / "bin" / "python"


class Endpoint(NamedTuple):
    """All that a client needs, small enough to hand to another process."""

    endpoint_url: str
    region: str
    access_key: str


def dynamodb_client(endpoint: Endpoint, config: Config | None = None) -> DynamoDBClient:
    client: DynamoDBClient = engine_client("dynamodb", endpoint, config)
    return client


def engine_client(
    service: Literal["dynamodb", "dynamodbstreams", "lambda", "s3", "secretsmanager", "sqs"],
    endpoint: Endpoint,
    config: Config | None = None,
) -> Any:
    direct = Config(proxies={})  # a proxy of the machine can not reach its loopback
    return boto3.client(
        service,
        endpoint_url=endpoint.endpoint_url,
        region_name=endpoint.region,
        aws_access_key_id=endpoint.access_key,
        aws_secret_access_key=SECRET_KEY,
        config=direct.merge(config) if config else direct,
    )


class Engine:
    """`with Engine() as engine:` starts it on a free port, or on the given one, with a data set of its own."""

    def __init__(self, *, port: int | None = None, cancelled: Callable[[], bool] = never) -> None:
        # Twelve digits are taken as the account number. One per engine, because the CDK command line remembers
        # which account a key belongs to.
        self.account = str(secrets.randbelow(9 * 10**11) + 10**11)
        self._server = Server(
            "the local engine", command=self._command, answers=_is_ready, port=port, cancelled=cancelled
        )

    def __enter__(self) -> Self:
        if not _PYTHON.exists():
            raise LocalError("the local engine is not installed; `make run` and `make test` install it")
        self._server.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop()

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(f"http://{LOOPBACK}:{self._server.port}", REGION, self.account)

    @property
    def folder(self) -> Path:
        """Temporary, removed with the engine; what belongs to this run may be put here as well."""
        return self._server.folder

    @property
    def pid(self) -> int:
        return self._server.pid

    def check(self) -> None:
        """Raises when the engine has died."""
        self._server.check()

    def _command(self, port: int, folder: Path) -> Command:
        environment = engine_environment(port=port, folder=folder, account=self.account)
        return Command([str(_PYTHON), "-m", "ministack"], environment)


def engine_environment(*, port: int, folder: Path, account: str) -> dict[str, str]:
    """Everything the engine sees: nothing of the person's own settings, keys or Docker reaches it or its functions."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),  # functions in JavaScript are run with the node found here
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        "GATEWAY_PORT": str(port),
        "BIND_HOST": LOOPBACK,  # its own choice is every interface
        "MINISTACK_REGION": REGION,
        # What is not signed (a call of the HTTP API) counts as made in this account.
        "MINISTACK_ACCOUNT_ID": account,
        "AWS_ACCESS_KEY_ID": account,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "LAMBDA_EXECUTOR": "local",
        # Given a Docker socket it removes containers it takes for its own.
        "DOCKER_HOST": f"unix://{folder}/no-docker.sock",
        # These two would listen on every interface.
        "SFTP_ENABLED": "0",
        "IOT_MTLS_ENABLED": "0",
        "STATE_DIR": str(folder / "state"),
        "S3_DATA_DIR": str(folder / "s3"),
        "LOG_LEVEL": "WARNING",  # a line per request would cost more than the request
    }


def _is_ready(port: int) -> bool:
    try:
        return loopback_get(port, "/_ministack/ready", timeout_seconds=2).status == 200
    except OSError:
        return False
