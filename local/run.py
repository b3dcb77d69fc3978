"""`make run`: the whole product on one machine, in the foreground, until Ctrl-C or SIGTERM.

Exit codes: 0 when it was stopped after it had become ready, 128 + the signal's number when it was stopped before,
1 when something failed; whatever the way out, all that was started is stopped and removed.
"""

import argparse
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Final

from botocore.exceptions import BotoCoreError, ClientError

from local import ROOT
from local.demo import load_demo
from local.deploy import Outputs, check_toolchain, deploy, synth
from local.engine import Endpoint, Engine, dynamodb_client
from local.process import Cancelled, LocalError

_DEFAULT_PORT: Final = 4566
# Tests move the file away from a developer's own run.
_OUTPUTS_VARIABLE: Final = "SLUICE_OUTPUTS_FILE"
_WATCH_SECONDS: Final = 0.2
_EXAMPLE: Final = {"entity": "user-1", "resource": "gpt-4", "consume": {"rpm": 1, "tpm": 500}}


class StopRequest:
    """Remembers the first signal. A handler that raised could leave a child between its start and its context."""

    def __init__(self) -> None:
        self.number = 0

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._remember)

    def __call__(self) -> bool:
        return self.number != 0

    def _remember(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of a handler
        self.number = self.number or number


def main() -> int:
    parser = argparse.ArgumentParser(prog="make run", description="Runs Sluice on this machine.")
    parser.add_argument("--assembly", type=Path, help="deploy this synthesized folder instead of synthesizing")
    assembly: Path | None = parser.parse_args().assembly
    stop = StopRequest()
    stop.install()
    try:
        run(chosen_port(os.environ), outputs_file(os.environ), assembly, stop)
    except LocalError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 1
    except (BotoCoreError, ClientError) as error:
        print(f"error: the local engine's DynamoDB: {error}", file=sys.stderr, flush=True)
        return 1
    except Cancelled:
        print("stopped before it was ready", file=sys.stderr, flush=True)
        return 128 + stop.number
    return 0


def run(port: int, written: Path, assembly: Path | None, stop: StopRequest) -> None:
    """Returns when it was asked to stop; by then nothing is left."""
    check_toolchain()
    _say(f"starting the local engine on port {port}")
    with Engine(port=port, cancelled=stop) as engine:
        written.unlink(missing_ok=True)  # left by a run that was killed
        if assembly is None:
            _say("synthesizing the stacks")
            assembly = synth(engine.folder, cancelled=stop)
        _say("deploying the stacks")
        outputs = deploy(engine, assembly.resolve(), cancelled=stop)
        _say("loading the demo")
        load_demo(dynamodb_client(engine.endpoint), outputs.table)
        if stop():
            raise Cancelled
        text = outputs_text(outputs, engine.endpoint)
        try:
            written.parent.mkdir(parents=True, exist_ok=True)
            # Whoever waits for the file must never read half of it.
            partial = written.with_name(f"{written.name}.{os.getpid()}")
            partial.write_text(text)
            partial.replace(written)
            _say(introduction(outputs, engine.endpoint, written))
            while not stop():
                engine.check()
                time.sleep(_WATCH_SECONDS)
            _say("\nstopping")
        finally:
            if written.exists() and written.read_text() == text:
                written.unlink()
    _say("stopped")


def chosen_port(environment: Mapping[str, str]) -> int:
    text = environment.get("PORT") or str(_DEFAULT_PORT)
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 65_535:
        raise LocalError(f"PORT must be a number from 1 to 65535, not {text!r}")
    return int(text)


def outputs_file(environment: Mapping[str, str]) -> Path:
    return Path(environment.get(_OUTPUTS_VARIABLE) or ROOT / ".local" / "outputs.json").resolve()


def outputs_text(outputs: Outputs, endpoint: Endpoint) -> str:
    """The contract's file. Null stands for what this version does not have yet."""
    content = {
        "api_url": outputs.api_url,
        "console_url": None,
        "operator_key": None,
        "endpoint_url": endpoint.endpoint_url,
        "region": endpoint.region,
        "table": outputs.table,
        "archive_bucket": outputs.archive_bucket,
        "demo": None,
    }
    return json.dumps(content, indent=2) + "\n"


def introduction(outputs: Outputs, endpoint: Endpoint, written: Path) -> str:
    return "\n".join(
        [
            "",
            "Sluice is ready.",
            f"  API       {outputs.api_url}",
            f"  engine    {endpoint.endpoint_url} ({endpoint.region}, access key {endpoint.access_key}, any secret)",
            f"  table     {outputs.table}",
            f"  archive   {outputs.archive_bucket}",
            f"  outputs   {written}",
            "",
            "Try it:",
            f"  {example_call(outputs)}",
            "",
            "Ctrl-C stops everything and forgets its data.",
        ]
    )


def example_call(outputs: Outputs) -> str:
    """Quoted for a shell: the address holds a dollar sign."""
    address = shlex.quote(f"{outputs.api_url}/v1/acquire")
    return f"curl -i {address} -H 'content-type: application/json' -d {shlex.quote(json.dumps(_EXAMPLE))}"


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
