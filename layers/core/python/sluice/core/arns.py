"""ARNs of Amazon Bedrock, read part by part: of inference profiles, as people send them, and of the models behind one.

An inference profile is one of AWS, such as `us.anthropic.claude-...`, or one that an account made for itself. Which
model serves a call depends on the region, and AWS alone knows it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sluice.core.errors import InvalidRequest

PROFILE_ARN_MAX: Final = 2048

# Also partitions and regions that do not exist yet: AWS says which there are.
_PARTITION: Final = re.compile(r"aws(-[a-z]{1,8}){0,3}")
_REGION: Final = re.compile(r"[a-z]{2,8}(-[a-z]{2,16}){1,3}-[0-9]{1,2}")
_ACCOUNT: Final = re.compile(r"[0-9]{12}")
_PROFILE_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:-]{0,63}")
_MODEL_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,255}")
_FORM: Final = "arn:{partition}:bedrock:{region}:{account}:{application-inference-profile or inference-profile}/{id}"


class ProfileKind(StrEnum):
    """Who made it, as ARNs spell it."""

    APPLICATION = "application-inference-profile"
    SYSTEM = "inference-profile"


@dataclass(frozen=True, slots=True)
class ProfileArn:
    """Its text is the ARN. `region`: where AWS is asked about it."""

    partition: str
    region: str
    account: str
    kind: ProfileKind
    profile_id: str

    def __str__(self) -> str:
        return f"arn:{self.partition}:bedrock:{self.region}:{self.account}:{self.kind.value}/{self.profile_id}"


@dataclass(frozen=True, slots=True)
class ModelInRegion:
    """`region`: None for a model that may serve a call in any region, as those of a global profile."""

    model_id: str
    region: str | None


class ProfileRefused(Exception):
    """AWS does not tell the models of an inference profile, and would not when asked once more."""


def parse_profile_arn(field: str, text: str) -> ProfileArn:
    """Raises InvalidRequest, which names the field and the part that is wrong."""
    parts = text.split(":", 5)
    if len(parts) != 6 or (parts[0], parts[2]) != ("arn", "bedrock"):
        raise InvalidRequest(field, f"is not of the form {_FORM}")
    _, partition, _, region, account, resource = parts
    kind, _, profile_id = resource.partition("/")
    for name, part, pattern in (
        ("partition", partition, _PARTITION),
        ("region", region, _REGION),
        ("account", account, _ACCOUNT),
        ("id", profile_id, _PROFILE_ID),
    ):
        if pattern.fullmatch(part) is None:
            raise InvalidRequest(field, f"has a wrong {name}; the form is {_FORM}")
    try:
        return ProfileArn(partition, region, account, ProfileKind(kind), profile_id)
    except ValueError:
        raise InvalidRequest(field, f"is not the ARN of an inference profile; the form is {_FORM}") from None


def parse_model_arn(text: str) -> ModelInRegion | None:
    """Of a foundation model, which belongs to no account. None for the ARN of anything else: nobody guesses."""
    parts = text.split(":", 5)
    if len(parts) != 6 or (parts[0], parts[2], parts[4]) != ("arn", "bedrock", ""):
        return None
    kind, _, model_id = parts[5].partition("/")
    region = parts[3] or None
    if kind != "foundation-model" or _MODEL_ID.fullmatch(model_id) is None:
        return None
    if _PARTITION.fullmatch(parts[1]) is None or (region is not None and _REGION.fullmatch(region) is None):
        return None
    return ModelInRegion(model_id, region)


def model_in(models: Iterable[ModelInRegion], region: str) -> str | None:
    """The model of that region, else the one of any region, else None."""
    by_region = {model.region: model.model_id for model in models}
    return by_region.get(region) or by_region.get(None)


def priced_model_id(arn: ProfileArn, model_id: str) -> str:
    """What a call of that model through this profile is priced as.

    AWS has prices of their own for its profiles that are named after a model with a geography in front. The price book
    takes the model's where there is none.
    """
    geography, _, named = arn.profile_id.partition(".")
    is_priced = arn.kind is ProfileKind.SYSTEM and bool(geography) and named == model_id
    return arn.profile_id if is_priced else model_id
