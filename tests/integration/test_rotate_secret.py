"""Rotation of a secret's keys: both keys stay valid, and of two people who rotate at once one is refused.

On ministack: moto takes whatever was put last for the current version.
"""

import json
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from local.engine import SECRET_KEY, Endpoint, Engine
from local.process import LOOPBACK
from sluice.services.signing import Signer, SigningKeys, parse_keys
from tools import rotate_secret
from tools.rotate_secret import PURPOSE_TAG, PURPOSES, UNNOTICED, RotationRefused, rotate

FIRST = "first-key-" + "x" * 54


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with Engine() as engine:
        yield engine.endpoint


@pytest.fixture
def client(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint.endpoint_url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", endpoint.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_DEFAULT_REGION", endpoint.region)
    monkeypatch.setenv("NO_PROXY", LOOPBACK)
    return boto3.client("secretsmanager")


def new_secret(client: Any, purpose: str = "signing", content: str | None = None) -> str:
    """As the stack makes it."""
    arn: str = client.create_secret(
        Name=f"{purpose}-{uuid.uuid4()}",
        SecretString=content or json.dumps({"current": FIRST, "previous": ""}),
        Tags=[{"Key": PURPOSE_TAG, "Value": purpose}],
    )["ARN"]
    return arn


def content(client: Any, secret: str) -> dict[str, str]:
    found: dict[str, str] = json.loads(client.get_secret_value(SecretId=secret)["SecretString"])
    return found


def now() -> datetime:
    return datetime.now(UTC)


def test_the_current_key_becomes_the_previous_one(client: Any) -> None:
    secret = new_secret(client)
    version = rotate(client, secret, now())
    after = content(client, secret)
    assert after["previous"] == FIRST
    assert len(after["current"]) == 64
    assert after["current"] != FIRST
    parse_keys(json.dumps(after))
    assert client.get_secret_value(SecretId=secret)["VersionId"] == version
    # Nothing of the way there is left.
    stages = client.describe_secret(SecretId=secret)["VersionIdsToStages"]
    assert sorted(label for labels in stages.values() for label in labels) == ["AWSCURRENT", "AWSPREVIOUS"]


def test_what_was_signed_before_is_valid_after_one_rotation_and_not_after_two(client: Any) -> None:
    secret = new_secret(client)

    class Keys:
        def known(self) -> SigningKeys:
            return parse_keys(client.get_secret_value(SecretId=secret)["SecretString"])

        looked_up = known

    signer = Signer(Keys())
    token = signer.sign("lease", b"payload")
    rotate(client, secret, now())
    assert signer.verify("lease", token) == b"payload"
    newer = signer.sign("lease", b"newer")
    rotate(client, secret, now() + timedelta(days=2))
    assert signer.verify("lease", token) is None
    assert signer.verify("lease", newer) == b"newer"


@pytest.mark.parametrize("purpose", ["signing", "token", "operator"])
def test_a_second_rotation_waits_until_the_previous_key_is_out_of_use(client: Any, purpose: str) -> None:
    secret = new_secret(client, purpose)
    rotate(client, secret, now())
    made_at = client.get_secret_value(SecretId=secret)["CreatedDate"]
    in_use = PURPOSES[purpose].in_use
    assert in_use is not None
    with pytest.raises(RotationRefused, match="--force"):
        rotate(client, secret, made_at + in_use + UNNOTICED - timedelta(seconds=1))
    assert content(client, secret)["previous"] == FIRST
    rotate(client, secret, made_at + in_use + UNNOTICED)
    assert content(client, secret)["previous"] != FIRST


def test_no_time_makes_a_second_rotation_of_the_credentials_key_safe(client: Any) -> None:
    secret = new_secret(client, "credentials")
    rotate(client, secret, now())
    with pytest.raises(RotationRefused, match="have to be given a new secret"):
        rotate(client, secret, now() + timedelta(days=3650))
    rotate(client, secret, now(), force=True)
    assert content(client, secret)["previous"] != FIRST


def test_force_rotates_at_once(client: Any) -> None:
    secret = new_secret(client, "token")
    rotate(client, secret, now())
    second = content(client, secret)["current"]
    rotate(client, secret, now(), force=True)
    assert content(client, secret)["previous"] == second


class Overtaken:
    """Somebody else rotates between our read and our write."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.winner: str | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def put_secret_value(self, **request: Any) -> Any:
        if self.winner is None:
            self.winner = rotate(self.client, request["SecretId"], now())
        return self.client.put_secret_value(**request)


def test_of_two_at_once_one_is_refused_and_no_key_is_lost(client: Any) -> None:
    secret = new_secret(client)
    overtaken = Overtaken(client)
    with pytest.raises(RotationRefused, match="somebody else"):
        rotate(overtaken, secret, now())
    assert client.get_secret_value(SecretId=secret)["VersionId"] == overtaken.winner
    assert content(client, secret)["previous"] == FIRST
    stages = client.describe_secret(SecretId=secret)["VersionIdsToStages"]
    assert sorted(label for labels in stages.values() for label in labels) == ["AWSCURRENT", "AWSPREVIOUS"]


@pytest.mark.parametrize(
    "text", ["no JSON sk_hidden", "[]", '{"current": "sk_hidden"}', '{"current": 1, "previous": ""}']
)
def test_what_is_not_two_keys_is_left_alone_and_not_shown(client: Any, text: str) -> None:
    secret = new_secret(client, content=text)
    with pytest.raises(RotationRefused, match="two keys") as raised:
        rotate(client, secret, now())
    assert "sk_hidden" not in str(raised.value)
    assert client.get_secret_value(SecretId=secret)["SecretString"] == text


def test_a_secret_of_another_product_is_left_alone(client: Any) -> None:
    arn = client.create_secret(Name=f"other-{uuid.uuid4()}", SecretString='{"current": "x", "previous": ""}')["ARN"]
    with pytest.raises(RotationRefused, match="no tag"):
        rotate(client, arn, now())


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["rotate_secret", *arguments])
    return rotate_secret.main()


def test_the_command_prints_no_key(
    client: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = new_secret(client)
    assert run(monkeypatch, secret) == 0
    assert run(monkeypatch, secret) == 1
    assert run(monkeypatch, secret, "--force") == 0
    assert run(monkeypatch, "arn:of:nothing") == 1
    printed = capsys.readouterr()
    assert "rotated: version" in printed.out
    assert "refused: it was last rotated" in printed.err
    assert "error: " in printed.err
    shown = printed.out + printed.err
    assert not any(key in shown for key in (FIRST, *content(client, secret).values()))


def test_an_error_of_aws_is_not_taken_for_a_lost_race(client: Any) -> None:
    class Denied(Overtaken):
        def put_secret_value(self, **request: Any) -> Any:
            answer: Any = {"Error": {"Code": "AccessDeniedException"}}
            raise ClientError(answer, "PutSecretValue")

    with pytest.raises(ClientError):
        rotate(Denied(client), new_secret(client), now())
