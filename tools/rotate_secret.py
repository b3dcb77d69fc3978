"""`make rotate-secret SECRET=arn`: the current key becomes the previous one, and a new one takes its place.

Every process accepts both keys, and uses the new one within minutes; one that has read them just before accepts the
new one up to ten seconds late. What was made under the key before the previous one ends here; so the command refuses
while that key may still be in use, unless it is told `--force`. Of two people who rotate at once one is refused: each
moves the label AWSCURRENT from the version that it has read.

No key is ever printed.
"""

import argparse
import json
import secrets
import sys
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import boto3
from botocore.exceptions import BotoCoreError, ClientError

# As the stacks tag a secret.
PURPOSE_TAG: Final = "sluice:purpose"
# How long a process may go on with the keys that it has read.
UNNOTICED: Final = timedelta(minutes=10)
_KEY_BYTES: Final = 48


@dataclass(frozen=True)
class Purpose:
    """`in_use`: how long something under a previous key may be in use; None where no time ends it."""

    in_use: timedelta | None
    what_ends: str


PURPOSES: Final = {
    "signing": Purpose(timedelta(days=1), "leases and cursors under the older key become invalid"),
    "token": Purpose(
        timedelta(days=30),
        "clients whose refresh token is under the older key have to log in again with their secret, and access tokens "
        "under it end at once",
    ),
    "operator": Purpose(timedelta(days=1), "whoever still presents the older key is refused"),
    "credentials": Purpose(
        None,
        "clients that have not logged in with their secret since the last rotation have to be given a new secret",
    ),
}


class RotationRefused(Exception):
    """Nothing was changed. The message is for a person."""


@dataclass(frozen=True)
class _Seen:
    version: str
    made_at: datetime
    current: str
    previous: str


def rotate(client: Any, secret: str, now: datetime, *, force: bool = False) -> str:
    """The id of the new version. Raises RotationRefused."""
    purpose = _purpose(client, secret)
    seen = _read(client, secret)
    if seen.previous and not force:
        _require_unused(purpose, seen, now)
    version = str(uuid.uuid4())
    label = f"rotation-{version}"
    content = json.dumps({"current": secrets.token_urlsafe(_KEY_BYTES), "previous": seen.current})
    # First beside the current version, under a label of its own, so that nothing is replaced unseen.
    client.put_secret_value(SecretId=secret, ClientRequestToken=version, SecretString=content, VersionStages=[label])
    try:
        client.update_secret_version_stage(
            SecretId=secret,
            VersionStage="AWSCURRENT",
            RemoveFromVersionId=seen.version,
            MoveToVersionId=version,
        )
    except ClientError as error:
        if error.response["Error"]["Code"] != "InvalidParameterException":
            raise
        raise RotationRefused("somebody else rotated it meanwhile; nothing was changed") from error
    finally:
        client.update_secret_version_stage(SecretId=secret, VersionStage=label, RemoveFromVersionId=version)
    return version


def _purpose(client: Any, secret: str) -> Purpose:
    tags = {tag["Key"]: tag["Value"] for tag in client.describe_secret(SecretId=secret).get("Tags", ())}
    name = tags.get(PURPOSE_TAG)
    if name not in PURPOSES:
        raise RotationRefused(f"the secret has no tag {PURPOSE_TAG} with a purpose that is known")
    return PURPOSES[name]


def _read(client: Any, secret: str) -> _Seen:
    answer = client.get_secret_value(SecretId=secret)
    try:
        keys = json.loads(answer["SecretString"])
        current, previous = keys["current"], keys["previous"]
    except (KeyError, TypeError, ValueError):
        # The message of the error would show what the secret holds.
        raise RotationRefused("the secret does not hold two keys, current and previous") from None
    if not isinstance(current, str) or not isinstance(previous, str) or not current:
        raise RotationRefused("the secret does not hold two keys, current and previous")
    return _Seen(answer["VersionId"], answer["CreatedDate"], current, previous)


def _require_unused(purpose: Purpose, seen: _Seen, now: datetime) -> None:
    """The version was made when its previous key went out of use."""
    made = f"it was last rotated at {seen.made_at:%Y-%m-%d %H:%M %Z}"
    if purpose.in_use is None:
        raise RotationRefused(f"{made}; rotated again, {purpose.what_ends}. --force does it")
    unused_at = seen.made_at + purpose.in_use + UNNOTICED
    if now < unused_at:
        raise RotationRefused(
            f"{made}; rotated again before {unused_at:%Y-%m-%d %H:%M %Z}, {purpose.what_ends}. --force does it"
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="make rotate-secret", description="Gives a secret of Sluice a new key.")
    parser.add_argument("secret", help="the ARN, an output of the data stack")
    parser.add_argument("--force", action="store_true", help="also while the key before the previous one is in use")
    arguments = parser.parse_args()
    try:
        version = rotate(boto3.client("secretsmanager"), arguments.secret, datetime.now(UTC), force=arguments.force)
    except RotationRefused as refused:
        print(f"refused: {refused}", file=sys.stderr)
        return 1
    except (BotoCoreError, ClientError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"rotated: version {version}. Every process uses the new key within five minutes.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
