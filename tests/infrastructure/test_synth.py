"""The command that a person runs."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.infrastructure.assembly import CDK_JSON, PARTS, ROOT, Assembly


@contextmanager
def dead_end() -> Iterator[tuple[str, socket.socket]]:
    """An address that answers nothing and remembers whether anybody came."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", listener


def visited(listener: socket.socket) -> bool:
    try:
        connection, _ = listener.accept()
    except BlockingIOError:
        return False
    connection.close()
    return True


def test_synth_asks_aws_nothing_and_needs_no_credentials(prod: Assembly, tmp_path: Path) -> None:
    """Every way out leads to one dead end, and nobody takes it. (The fixture has built the layers.)"""
    with dead_end() as (address, listener):
        environment = {
            "PATH": os.environ["PATH"],
            # The real home has CDK's unpacked library, which saves 8 s; the files with credentials are left out.
            "HOME": os.environ["HOME"],
            "CDK_HOME": str(tmp_path / "cdk-home"),
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_ENDPOINT_URL": address,
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": address,
            **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), address),
        }
        cdk = str(ROOT / "node_modules" / ".bin" / "cdk")
        command = [cdk, "synth", "-q", "-c", f"env={prod.settings.name}", "-o", str(tmp_path / "out")]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert not visited(listener)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert not manifest.get("missing")
    stacks = {a["environment"] for a in manifest["artifacts"].values() if a["type"] == "aws:cloudformation:stack"}
    assert stacks == {"aws://unknown-account/unknown-region"}


def test_the_dead_end_notices_a_visitor() -> None:
    with dead_end() as (address, listener):
        assert not visited(listener)
        with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))):
            assert visited(listener)


def test_an_unknown_environment_is_one_plain_line() -> None:
    environment = {"PATH": os.environ["PATH"], "CDK_CONTEXT_JSON": json.dumps({"env": "nowhere"})}
    done = subprocess.run(
        [sys.executable, "app.py"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "sluice: unknown environment 'nowhere': use -c env=NAME, one of local, dev, staging, prod"
    )
    assert "Traceback" not in done.stderr


def test_stack_names(each: Assembly) -> None:
    manifest = json.loads((each.folder / "manifest.json").read_text())
    stacks = {name for name, a in manifest["artifacts"].items() if a["type"] == "aws:cloudformation:stack"}
    assert stacks == {f"Sluice-{each.settings.name}-{part}" for part in PARTS}


def test_only_prod_protects_its_data_stack_from_deletion(each: Assembly) -> None:
    manifest = json.loads((each.folder / "manifest.json").read_text())
    protected = {name for name, a in manifest["artifacts"].items() if a["properties"].get("terminationProtection")}
    assert protected == ({"Sluice-prod-Data"} if each.settings.name == "prod" else set())


def test_stacks_hold_on_to_what_they_share(each: Assembly) -> None:
    """Strong references: nothing that another stack uses can be taken away under it."""
    consumers = json.dumps([each.raw("Api"), each.raw("Monitoring")])
    assert "Fn::ImportValue" in consumers
    assert "Fn::GetStackOutput" not in consumers


def test_the_flags_that_keep_an_alias_on_the_newest_code() -> None:
    assert CDK_JSON["app"] == ".venv/bin/python app.py"
    context = CDK_JSON["context"]
    assert context["@aws-cdk/aws-lambda:recognizeLayerVersion"] is True
    assert context["@aws-cdk/aws-lambda:recognizeVersionProps"] is True
    assert context["@aws-cdk/core:defaultCrossStackReferences"] == "strong"
