"""Inference profiles as they are stored, and the requests about them, each guarded by the version that was seen.

They stand with the entity: an app, or the org for all of its apps. Which models a profile has is not stored: AWS is
asked.
"""

from collections.abc import Mapping
from typing import Final

from sluice.core.arns import parse_profile_arn
from sluice.core.errors import InvalidRequest
from sluice.core.labels import InferenceProfile
from sluice.repository import keys, money_keys
from sluice.repository.audit import Image
from sluice.repository.requests import QueryRequest, TransactWrite
from sluice.repository.shapes import UnknownShape, check_kind, optional_text, text, whole
from sluice.repository.wire import Item, Value

INFERENCE_PROFILE: Final = "inference_profile"
_ARN: Final = "inference_profile_arn"


def profile_put(namespace: str, profile: InferenceProfile, seen: InferenceProfile | None) -> TransactWrite:
    """Replaces what was seen, or nothing."""
    item = encode_profile(namespace, profile)
    if seen is None:
        return {"Put": {"Item": item, "ConditionExpression": "attribute_not_exists(PK)"}}
    condition, values = _as_seen(seen)
    return {"Put": {"Item": item, "ConditionExpression": condition, "ExpressionAttributeValues": values}}


def profile_delete(namespace: str, seen: InferenceProfile) -> TransactWrite:
    condition, values = _as_seen(seen)
    key: Item = {**money_keys.profile(namespace, seen.entity, seen.label).attributes}
    return {"Delete": {"Key": key, "ConditionExpression": condition, "ExpressionAttributeValues": values}}


def app_exists(namespace: str, app: str) -> TransactWrite:
    """Nothing is added to an app that is gone: nobody would ever remove it."""
    key: Item = {**keys.app_settings(namespace, app).attributes}
    return {"ConditionCheck": {"Key": key, "ConditionExpression": "attribute_exists(PK)"}}


def profiles_query(namespace: str, entity: str) -> QueryRequest:
    """All profiles of an app or, for the org's entity, those for all apps; by label."""
    return {
        "KeyConditionExpression": "PK = :entity AND begins_with(SK, :profile)",
        "ExpressionAttributeValues": {
            ":entity": money_keys.profiles_partition(namespace, entity),
            ":profile": money_keys.PROFILE_PREFIX,
        },
        "ConsistentRead": True,
    }


def profile_target(label: str, app: str | None) -> str:
    """What the audit says was changed, by its path in the API. `app`: None for the whole org."""
    return f"inference-profiles/{label}" if app is None else f"inference-profiles/{label}?app={app}"


def profile_image(profile: InferenceProfile) -> Image:
    """As the audit shows it."""
    return {"label": profile.label, "version": profile.version, **_fields(profile)}


def encode_profile(namespace: str, profile: InferenceProfile) -> Item:
    return {
        **money_keys.profile(namespace, profile.entity, profile.label).attributes,
        **money_keys.profile_indexes(namespace, profile.entity, profile.label),
        "kind": INFERENCE_PROFILE,
        "entity_id": profile.entity,
        "label": profile.label,
        **_fields(profile),
        "v": profile.version,
        "created_at": profile.created_at_ms,
        "updated_at": profile.updated_at_ms,
    }


def decode_profile(item: Mapping[str, Value]) -> InferenceProfile:
    check_kind(item, INFERENCE_PROFILE)
    try:
        arn = parse_profile_arn(_ARN, text(item, _ARN))
    except InvalidRequest as error:
        raise UnknownShape(item, str(error)) from None
    return InferenceProfile(
        entity=text(item, "entity_id"),
        label=text(item, "label"),
        arn=arn,
        description=optional_text(item, "description"),
        version=whole(item, "v"),
        created_at_ms=whole(item, "created_at"),
        updated_at_ms=whole(item, "updated_at"),
    )


def _fields(profile: InferenceProfile) -> dict[str, Value]:
    """What was put, without what was left out."""
    fields: dict[str, Value] = {_ARN: str(profile.arn)}
    if profile.description is not None:
        fields["description"] = profile.description
    return fields


def _as_seen(profile: InferenceProfile) -> tuple[str, dict[str, Value]]:
    """Removed and made again, a profile starts at version 1 once more: its creation time tells the two apart."""
    values: dict[str, Value] = {":version": profile.version, ":created": profile.created_at_ms}
    return "v = :version AND created_at = :created", values
