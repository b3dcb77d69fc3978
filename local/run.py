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
from local.demo import APP, MODELS, RESOURCE, USER, Demo, load_demo
from local.deploy import Outputs, check_toolchain, deploy, read_operator_key, synth
from local.engine import Endpoint, Engine
from local.process import Cancelled, LocalError

_DEFAULT_PORT: Final = 4566
# Tests move the file away from a developer's own run.
_OUTPUTS_VARIABLE: Final = "SLUICE_OUTPUTS_FILE"
_WATCH_SECONDS: Final = 0.2
_ACQUIRE: Final = {"entity": USER, "resource": RESOURCE, "consume": {"rpm": 1, "tpm": 500}}
_USAGE: Final = {
    "request_id": "call-1",
    "entity": USER,
    "label": next(iter(MODELS)),
    "input_tokens": 1500,
    "output_tokens": 800,
    "status": "ok",
}


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
        print(f"error: the local engine: {error}", file=sys.stderr, flush=True)
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
        operator_key = read_operator_key(engine.endpoint, outputs)
        demo = load_demo(outputs.api_url, operator_key)
        if stop():
            raise Cancelled
        text = outputs_text(outputs, engine.endpoint, operator_key, demo)
        try:
            write_outputs(written, text)
            _say(introduction(outputs, engine.endpoint, demo, written))
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


def write_outputs(written: Path, text: str) -> None:
    """For its owner only: there are secrets in it."""
    written.parent.mkdir(parents=True, exist_ok=True)
    # Whoever waits for the file must never read half of it.
    partial = written.with_name(f"{written.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    partial.touch(mode=0o600, exist_ok=False)
    partial.write_text(text)
    partial.replace(written)


def outputs_text(outputs: Outputs, endpoint: Endpoint, operator_key: str, demo: Demo) -> str:
    """The contract's file. Null stands for what this version does not have yet."""
    content = {
        "api_url": outputs.api_url,
        "console_url": None,
        "operator_key": operator_key,
        "endpoint_url": endpoint.endpoint_url,
        "region": endpoint.region,
        "table": outputs.table,
        "archive_bucket": outputs.archive_bucket,
        "demo": {
            "org": demo.org,
            "client_id": demo.org_client.client_id,
            "client_secret": demo.org_client.client_secret,
        },
    }
    return json.dumps(content, indent=2) + "\n"


def introduction(outputs: Outputs, endpoint: Endpoint, demo: Demo, written: Path) -> str:
    return "\n".join(
        [
            "",
            "Sluice is ready.",
            f"  API       {outputs.api_url}",
            f"  engine    {endpoint.endpoint_url} ({endpoint.region}, access key {endpoint.access_key}, any secret)",
            f"  table     {outputs.table}",
            f"  archive   {outputs.archive_bucket}",
            f"  outputs   {written} (with the operator's key and the demo org's secret)",
            "",
            f"Try it, as the app {APP} of the org {demo.org}:",
            *(f"  {line}" for line in example_calls(outputs, demo)),
            "",
            "Ctrl-C stops everything and forgets its data.",
        ]
    )


def example_calls(outputs: Outputs, demo: Demo) -> list[str]:
    """A login that keeps the token, which lives an hour; a call, what it used, and which label to use next. Quoted for
    a shell: the address holds a dollar sign."""
    client = {"client_id": demo.app_client.client_id, "client_secret": demo.app_client.client_secret}

    def curl(options: str, path: str, body: Mapping[str, object] | None = None) -> str:
        address = shlex.quote(f"{outputs.api_url}{path}")
        sent = "" if body is None else f" -H 'content-type: application/json' -d {shlex.quote(json.dumps(body))}"
        return f"curl {options} {address}{sent}"

    cut_out = r"""sed 's/.*"access_token":"\([^"]*\)".*/\1/'"""
    as_app = '-i -H "authorization: Bearer $TOKEN"'
    return [
        f"TOKEN=$({curl('-s', '/v1/auth/token', client)} | {cut_out})",
        curl(as_app, "/v1/acquire", _ACQUIRE),
        curl(as_app, "/v1/usage", _USAGE),
        curl(as_app, "/v1/selection"),
    ]


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
