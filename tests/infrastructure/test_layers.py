"""The layers, as uv built them."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from stacks import wheels
from stacks.settings import WheelTarget
from stacks.wheels import BuildError, core_layer, vendor_layer

# Written out, so that a service that goes missing from the build is noticed here.
SERVICES = {"bedrock", "dynamodb", "events", "pricing", "s3", "secretsmanager", "sns", "sqs", "sts"}
IMPORTS = """
import json, sys
sys.path[:0] = [sys.argv[1]]
import boto3, jwt, pydantic, zoneinfo, tzdata
from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.event_handler import APIGatewayHttpResolver
for service in json.loads(sys.argv[2]):
    boto3.client(service, region_name="eu-central-1", aws_access_key_id="x", aws_secret_access_key="x")
class Body(pydantic.BaseModel):
    amount: int
assert Body.model_validate_json('{"amount": 3}').amount == 3
app = APIGatewayHttpResolver(enable_validation=True)
for name in ("boto3", "botocore", "jwt", "pydantic_core", "aws_lambda_powertools", "tzdata", "urllib3"):
    print(name, sys.modules[name].__file__)
"""


def test_the_local_layer_is_all_that_a_function_needs() -> None:
    """Isolated and without site-packages, so that nothing but the layer can be found."""
    python = vendor_layer(WheelTarget.THIS_MACHINE).folder / "python"
    services = str(sorted(SERVICES)).replace("'", '"')
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-B", "-c", IMPORTS, str(python), services],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    places = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert len(places) == 7
    assert all(Path(place).is_relative_to(python) for place in places.values())


def test_the_local_layer_is_compiled_for_good() -> None:
    python = vendor_layer(WheelTarget.THIS_MACHINE).folder / "python"
    compiled = list(python.glob(f"boto3/__pycache__/__init__.{sys.implementation.cache_tag}.pyc"))
    assert len(compiled) == 1
    # Bits 0 and 1 of the flags: by hash, and never checked against the source.
    assert int.from_bytes(compiled[0].read_bytes()[4:8], "little") == 0b01


def test_the_lambda_layer_is_for_lambda() -> None:
    python = vendor_layer(WheelTarget.LAMBDA).folder / "python"
    assert [path.name for path in python.rglob("*.so")] == ["_pydantic_core.cpython-314-aarch64-linux-gnu.so"]
    assert not list(python.rglob("__pycache__"))


@pytest.mark.parametrize("target", list(WheelTarget))
def test_only_the_services_in_use_are_carried(target: WheelTarget) -> None:
    data = vendor_layer(target).folder / "python" / "botocore" / "data"
    assert {path.name for path in data.iterdir() if path.is_dir()} == SERVICES
    assert {path.name for path in data.iterdir() if path.is_file()} == {
        "_retry.json",
        "endpoints.json",
        "partitions.json",
        "sdk-default-configuration.json",
    }


def test_the_lambda_layer_stays_small(tmp_path: Path) -> None:
    folder = vendor_layer(WheelTarget.LAMBDA).folder
    zipped = tmp_path / "layer.zip"
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in folder.rglob("*"):
            archive.write(path, path.relative_to(folder))
    assert 3_000_000 < zipped.stat().st_size < 7_000_000


def test_a_second_build_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    first = vendor_layer(WheelTarget.THIS_MACHINE)

    def never(*_: object) -> None:
        raise AssertionError("built again")

    monkeypatch.setattr(wheels, "_install", never)
    assert vendor_layer(WheelTarget.THIS_MACHINE) == first


def test_the_digest_follows_the_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "_install", lambda target, folder: folder.mkdir())
    monkeypatch.setattr(wheels, "prune", lambda folder: None)
    requirements = tmp_path / "requirements.txt"
    monkeypatch.setattr(wheels, "REQUIREMENTS", requirements)

    def digest(text: str, target: WheelTarget) -> str:
        requirements.write_text(text)
        return vendor_layer(target, cache=tmp_path / "cache").digest

    assert digest("a==1", WheelTarget.LAMBDA) == digest("a==1", WheelTarget.LAMBDA)
    assert digest("a==1", WheelTarget.LAMBDA) != digest("a==2", WheelTarget.LAMBDA)
    assert digest("a==1", WheelTarget.LAMBDA) != digest("a==1", WheelTarget.THIS_MACHINE)


def test_the_core_layer_is_the_source_without_leftovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    core = tmp_path / "core"
    (core / "python" / "sluice" / "__pycache__").mkdir(parents=True)
    (core / "python" / "sluice" / "__pycache__" / "old.pyc").write_text("")
    source = core / "python" / "sluice" / "__init__.py"
    source.write_text("A = 1\n")
    monkeypatch.setattr(wheels, "CORE", core)
    before = core_layer(WheelTarget.LAMBDA, cache=tmp_path / "cache")
    files = [path.relative_to(before.folder).as_posix() for path in before.folder.rglob("*") if path.is_file()]
    assert files == ["python/sluice/__init__.py"]
    source.write_text("A = 2\n")
    assert core_layer(WheelTarget.LAMBDA, cache=tmp_path / "cache").digest != before.digest


@pytest.mark.parametrize("target", list(WheelTarget))
def test_the_core_layer_carries_the_prices_and_their_notices(target: WheelTarget, tmp_path: Path) -> None:
    folder = core_layer(target, cache=tmp_path / "cache").folder
    carried = folder / "python" / "sluice" / "prices"
    assert {path.name for path in carried.iterdir()} == {"NOTICE", "book.json"}
    for path in carried.iterdir():
        assert path.read_bytes() == (wheels.CORE / "python" / "sluice" / "prices" / path.name).read_bytes()
    # As a function finds them.
    program = "import sys; sys.path[:0] = [sys.argv[1]]; from sluice.services.shipped_prices import shipped; shipped()"
    command = [sys.executable, "-I", "-S", "-B", "-c", program, str(folder / "python")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_failed_build_says_what_uv_said_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    # A folder of wheels on this machine would do instead of the network.
    monkeypatch.delenv("UV_FIND_LINKS", raising=False)
    with pytest.raises(BuildError, match=r"(?s)uv could not install the wheels.*(offline|network|disabled)"):
        vendor_layer(WheelTarget.LAMBDA, cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_losing_the_race_to_another_synth_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"

    def overtaken(target: WheelTarget, folder: Path) -> None:
        folder.mkdir()
        winner = cache / f"vendor-{expected[:16]}"
        winner.mkdir()
        (winner / "won").write_text("")

    monkeypatch.setattr(wheels, "prune", lambda folder: None)
    monkeypatch.setattr(wheels, "_install", lambda target, folder: folder.mkdir())
    expected = vendor_layer(WheelTarget.LAMBDA, cache=tmp_path / "other").digest
    monkeypatch.setattr(wheels, "_install", overtaken)
    build = vendor_layer(WheelTarget.LAMBDA, cache=cache)
    assert [path.name for path in build.folder.iterdir()] == ["won"]
    assert list(cache.iterdir()) == [build.folder]
