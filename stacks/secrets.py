"""The keys of one environment: four secrets of the same shape, each for one purpose."""

import json
from dataclasses import dataclass
from typing import Final, cast

import aws_cdk as cdk
from aws_cdk import aws_kms as kms
from aws_cdk import aws_secretsmanager as secretsmanager
from constructs import Construct

from stacks.acceptances import accept
from stacks.settings import Settings

PURPOSE_TAG: Final = "sluice:purpose"
_KEY_CHARACTERS: Final = 64


@dataclass(frozen=True, slots=True)
class SecretSpec:
    """What differs from one secret to the next."""

    construct_id: str
    description: str
    why_rotated_by_hand: str


_SIGNING: Final = SecretSpec(
    "Signing",
    "signs leases and cursors",
    "`make rotate-secret` rotates it: the current key becomes the previous one, which must stay valid for a day, as "
    "long as a lease may live. A schedule that runs twice within that day would cut leases off, and no schedule knows "
    "of it. An alarm tells when the key is older than 90 days.",
)
_TOKEN: Final = SecretSpec(
    "Token",
    "signs access and refresh tokens",
    "`make rotate-secret` rotates it: the current key becomes the previous one, which must stay valid for 30 days, as "
    "long as a refresh token may live. A schedule that runs twice within them would log every client out, and no "
    "schedule knows of it. An alarm tells when the key is older than 90 days.",
)
_OPERATOR: Final = SecretSpec(
    "Operator",
    "the key that operators present",
    "`make rotate-secret` rotates it: people and their tools hold a copy of the current key, and only they know when "
    "the last of them has the new one. An alarm tells when the key is older than 90 days.",
)
_CREDENTIALS: Final = SecretSpec(
    "Credentials",
    "the key under which client secrets are hashed",
    "`make rotate-secret` rotates it: a hash under the previous key is replaced when its client logs in, and a client "
    "that has not done so by the next rotation has to be given a new secret, which no schedule knows.",
)


class ServiceSecret(Construct):
    """Two keys: the current one is used, the previous one is still accepted. At first there is only one.

    It belongs beside its key: CDK adds a statement to the key's policy, and from another stack that is a cycle.
    """

    def __init__(self, scope: Construct, spec: SecretSpec, *, settings: Settings, key: kms.Key | None) -> None:
        super().__init__(scope, spec.construct_id)
        self._secret = secretsmanager.Secret(
            self,
            "Secret",
            description=f"Sluice {settings.name}: {spec.description}",
            generate_secret_string=secretsmanager.SecretStringGenerator(
                secret_string_template=json.dumps({"previous": ""}),
                generate_string_key="current",
                password_length=_KEY_CHARACTERS,
                exclude_punctuation=True,
            ),
            encryption_key=cast("kms.IKey", key) if key else None,
            removal_policy=cdk.RemovalPolicy.RETAIN if settings.retain_data else cdk.RemovalPolicy.DESTROY,
        )
        accept(self._secret, "AwsSolutions-SMG4", spec.why_rotated_by_hand)
        # The rotation reads from it how long the previous key must stay valid.
        cdk.Tags.of(self._secret).add(PURPOSE_TAG, spec.construct_id.lower())
        # Named by purpose: local tooling and the runbook find each secret by its output.
        cdk.CfnOutput(scope, f"{spec.construct_id}SecretArn", value=self.arn)

    @property
    def arn(self) -> str:
        return self._secret.secret_arn


@dataclass(frozen=True, slots=True)
class ServiceSecrets:
    """All secrets of an environment; each function is given the ones that it needs."""

    signing: ServiceSecret
    token: ServiceSecret
    operator: ServiceSecret
    credentials: ServiceSecret


def service_secrets(scope: Construct, *, settings: Settings, key: kms.Key | None) -> ServiceSecrets:
    def secret(spec: SecretSpec) -> ServiceSecret:
        return ServiceSecret(scope, spec, settings=settings, key=key)

    return ServiceSecrets(secret(_SIGNING), secret(_TOKEN), secret(_OPERATOR), secret(_CREDENTIALS))
