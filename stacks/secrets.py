"""The keys that sign what clients carry: leases and cursors."""

import json
from typing import Final, cast

import aws_cdk as cdk
from aws_cdk import aws_kms as kms
from aws_cdk import aws_secretsmanager as secretsmanager
from constructs import Construct

from stacks.acceptances import accept
from stacks.settings import Settings

_KEY_CHARACTERS: Final = 64
_ROTATED_BY_HAND: Final = (
    "The runbook rotates it: the current key becomes the previous one, which must stay valid for a day, as long as a "
    "lease may live. A schedule that runs twice within that day would cut leases off, and no schedule knows of it."
)


class SigningSecret(Construct):
    """Two keys: the current one signs, the previous one is still accepted. At first there is only one.

    It belongs beside its key: CDK adds a statement to the key's policy, and from another stack that is a cycle.
    """

    def __init__(self, scope: Construct, construct_id: str, *, settings: Settings, key: kms.Key | None) -> None:
        super().__init__(scope, construct_id)
        self._key = key
        self._secret = secretsmanager.Secret(
            self,
            "Secret",
            description=f"Sluice {settings.name}: signs leases and cursors",
            generate_secret_string=secretsmanager.SecretStringGenerator(
                secret_string_template=json.dumps({"previous": ""}),
                generate_string_key="current",
                password_length=_KEY_CHARACTERS,
                exclude_punctuation=True,
            ),
            encryption_key=cast("kms.IKey", key) if key else None,
            removal_policy=cdk.RemovalPolicy.RETAIN if settings.retain_data else cdk.RemovalPolicy.DESTROY,
        )
        accept(self._secret, "AwsSolutions-SMG4", _ROTATED_BY_HAND)

    @property
    def arn(self) -> str:
        return self._secret.secret_arn
