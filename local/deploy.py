"""The real stacks, synthesized once and deployed to a local engine with the plain CDK command line."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from local import ROOT
from local.engine import SECRET_KEY, Endpoint, Engine, dynamodb_client, engine_client
from local.process import Child, LocalError, never
from local.server import loopback_get
from local.table import enable_ttl

_CDK: Final = ROOT / "node_modules" / ".bin" / "cdk"
# Bounds for a loaded machine; a deploy takes seconds.
_SYNTH_SECONDS: Final = 300.0
_BOOTSTRAP_SECONDS: Final = 120.0
_DEPLOY_SECONDS: Final = 300.0
_HEALTH_SECONDS: Final = 60.0
# The only stage whose functions the engine can be called through.
_STAGE: Final = "$default"


@dataclass(frozen=True)
class Outputs:
    """Where the deployed product is found."""

    api_url: str
    table: str
    archive_bucket: str
    operator_secret: str


def check_toolchain() -> None:
    """Raises what can be known before anything is started."""
    if shutil.which("node") is None:
        raise LocalError("Node is not installed or not on the PATH: the CDK command line needs version 18 or newer")
    if not _CDK.exists():
        raise LocalError("the CDK command line is not installed; `make run` and `make test` install it")


def synth(folder: Path, *, cancelled: Callable[[], bool] = never) -> Path:
    """A cloud assembly below `folder`. Runs app.py with the person's own environment: building the layers may need
    their proxy and package index, and no AWS call is made."""
    assembly = folder / "cdk.out"
    arguments = ["synth", "--quiet", "--context", "env=local", "--output", str(assembly)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    # What the command line remembers between runs stays in the folder too.
    environment |= _quiet(folder)
    _cdk("cdk synth", arguments, environment, folder=folder, timeout_seconds=_SYNTH_SECONDS, cancelled=cancelled)
    return assembly


def deploy(engine: Engine, assembly: Path, *, cancelled: Callable[[], bool] = never) -> Outputs:
    """Bootstraps and deploys every stack of the assembly, and answers when the API says it is healthy."""
    environment = deploy_environment(engine)
    app = ["--app", str(assembly)]

    def interrupted() -> bool:
        engine.check()  # without it the command line would go on trying to reach a dead engine
        return cancelled()

    target = f"aws://{engine.account}/{engine.endpoint.region}"
    _cdk(
        "cdk bootstrap",
        ["bootstrap", target, *app],
        environment,
        folder=engine.folder,
        timeout_seconds=_BOOTSTRAP_SECONDS,
        cancelled=interrupted,
    )
    written = engine.folder / "stack-outputs.json"
    _cdk(
        "cdk deploy",
        ["deploy", "--all", "--require-approval", "never", "--outputs-file", str(written), *app],
        environment,
        folder=engine.folder,
        timeout_seconds=_DEPLOY_SECONDS,
        cancelled=interrupted,
    )
    outputs = read_outputs(json.loads(written.read_text()), engine.endpoint.endpoint_url)
    # The engine ignores the template's TTL.
    enable_ttl(dynamodb_client(engine.endpoint), outputs.table)
    _check_health(engine, outputs)
    return outputs


def read_outputs(stacks: Mapping[str, Mapping[str, str]], endpoint_url: str) -> Outputs:
    """From what `cdk deploy --outputs-file` wrote: outputs by stack. The ApiUrl output is AWS's form of the address,
    the engine serves the same API below its own."""
    values = {name: value for outputs in stacks.values() for name, value in outputs.items()}
    missing = sorted({"ApiId", "TableName", "ArchiveBucketName", "OperatorSecretArn"} - values.keys())
    if missing:
        raise LocalError(f"the deployed stacks have no output {', '.join(missing)}")
    return Outputs(
        api_url=f"{endpoint_url}/_aws/execute-api/{values['ApiId']}/{_STAGE}",
        table=values["TableName"],
        archive_bucket=values["ArchiveBucketName"],
        operator_secret=values["OperatorSecretArn"],
    )


def read_operator_key(endpoint: Endpoint, outputs: Outputs) -> str:
    """The key that the deploy has drawn."""
    client = engine_client("secretsmanager", endpoint)
    current: str = json.loads(client.get_secret_value(SecretId=outputs.operator_secret)["SecretString"])["current"]
    return current


def deploy_environment(engine: Engine) -> dict[str, str]:
    """Nothing inherited but the way to node, so that no key or profile of the person can ever be used."""
    endpoint = engine.endpoint
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(engine.folder),
        "TMPDIR": str(engine.folder),
        "LANG": "C.UTF-8",
        "AWS_ENDPOINT_URL": endpoint.endpoint_url,
        "AWS_REGION": endpoint.region,
        "AWS_ACCESS_KEY_ID": endpoint.access_key,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_EC2_METADATA_DISABLED": "true",
        **_quiet(engine.folder),
    }


def _quiet(folder: Path) -> dict[str, str]:
    return {
        "CDK_HOME": str(folder / "cdk-home"),
        "CDK_DISABLE_CLI_TELEMETRY": "true",
        "CI": "true",  # plain lines, nothing asked
        "NO_COLOR": "1",
    }


def _cdk(
    name: str,
    arguments: list[str],
    environment: Mapping[str, str],
    *,
    folder: Path,
    timeout_seconds: float,
    cancelled: Callable[[], bool],
) -> None:
    command = Child(
        name,
        [str(_CDK), *arguments, "--no-notices", "--no-version-reporting"],
        environment=environment,
        folder=ROOT,
        log=folder / f"{name.replace(' ', '-')}.log",
    )
    with command:
        code = command.wait(timeout_seconds=timeout_seconds, cancelled=cancelled)
        if code != 0:
            raise LocalError(f"{name} failed with exit code {code}. Its last lines:\n{command.tail()}")


def _check_health(engine: Engine, outputs: Outputs) -> None:
    """One call is enough: the engine answers only when the function has, however long its cold start takes."""
    url = urlsplit(f"{outputs.api_url}/v1/health")
    try:
        answer = loopback_get(url.port or 80, url.path, timeout_seconds=_HEALTH_SECONDS)
    except OSError as error:
        engine.check()
        raise LocalError(f"GET {url.geturl()} did not answer after the deploy: {error}") from error
    if answer.status != 200:
        said = answer.body[:2_000].decode(errors="replace")
        raise LocalError(f"GET {url.geturl()} answered {answer.status} after the deploy: {said}")
