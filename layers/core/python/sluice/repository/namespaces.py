"""The registry of namespaces: each has a record by its name and one by its id, with the same content.

The two are written, marked and removed together in one transaction, so either says everything.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sluice.repository import keys
from sluice.repository.requests import DeleteRequest, QueryRequest, TransactWrite
from sluice.repository.shapes import UnknownShape, check_kind, optional_text, text, whole
from sluice.repository.wire import Item, Value

NAMESPACE: Final = "namespace"


class NamespaceState(StrEnum):
    ACTIVE = "active"
    PURGING = "purging"


@dataclass(frozen=True, slots=True)
class Namespace:
    """A tenant. `job_id`: the purge that removes it, under the registry."""

    name: str
    namespace_id: str
    state: NamespaceState
    job_id: str | None
    created_at_ms: int
    updated_at_ms: int

    @property
    def is_active(self) -> bool:
        return self.state is NamespaceState.ACTIVE


def create_writes(namespace: Namespace) -> list[TransactWrite]:
    """By name first, then by id: neither may be there."""
    return [
        {"Put": {"Item": encode_namespace(key, namespace), "ConditionExpression": "attribute_not_exists(PK)"}}
        for key in _keys(namespace)
    ]


def purge_writes(seen: Namespace, job_id: str, now_ms: int) -> list[TransactWrite]:
    """Marks both records, unless another purge did since."""
    condition = "ns = :ns AND attribute_not_exists(job_id)"
    values: dict[str, Value] = {
        ":ns": seen.namespace_id,
        ":purging": NamespaceState.PURGING.value,
        ":job": job_id,
        ":now": now_ms,
    }
    if seen.job_id is not None:
        condition = "ns = :ns AND job_id = :seen_job"
        values[":seen_job"] = seen.job_id
    return [
        {
            "Update": {
                "Key": {**key.attributes},
                "UpdateExpression": "SET #state = :purging, job_id = :job, updated_at = :now",
                "ConditionExpression": condition,
                "ExpressionAttributeNames": {"#state": "state"},
                "ExpressionAttributeValues": values,
            }
        }
        for key in _keys(seen)
    ]


def remove_writes(namespace: Namespace, job_id: str) -> list[TransactWrite]:
    """The end of a purge. A name that was given away since belongs to another namespace and stays."""

    def removal(key: keys.Key) -> DeleteRequest:
        return {
            "Key": {**key.attributes},
            "ConditionExpression": "ns = :ns AND job_id = :job",
            "ExpressionAttributeValues": {":ns": namespace.namespace_id, ":job": job_id},
        }

    return [{"Delete": removal(key)} for key in _keys(namespace)]


def namespaces_query(after: str | None, limit: int) -> QueryRequest:
    """By name. `after`: the last name of the page before."""
    first = keys.namespace_by_name("")
    request: QueryRequest = {
        "KeyConditionExpression": "PK = :registry AND begins_with(SK, :names)",
        "ExpressionAttributeValues": {":registry": first.pk, ":names": first.sk},
        "Limit": limit,
    }
    if after is not None:
        request["ExclusiveStartKey"] = {**keys.namespace_by_name(after).attributes}
    return request


def encode_namespace(key: keys.Key, namespace: Namespace) -> Item:
    item: Item = {
        **key.attributes,
        "kind": NAMESPACE,
        "name": namespace.name,
        "ns": namespace.namespace_id,
        "state": namespace.state.value,
        "created_at": namespace.created_at_ms,
        "updated_at": namespace.updated_at_ms,
    }
    if namespace.job_id is not None:
        item["job_id"] = namespace.job_id
    return item


def decode_namespace(item: Mapping[str, Value]) -> Namespace:
    check_kind(item, NAMESPACE)
    return Namespace(
        name=text(item, "name"),
        namespace_id=text(item, "ns"),
        state=_state(item),
        job_id=optional_text(item, "job_id"),
        created_at_ms=whole(item, "created_at"),
        updated_at_ms=whole(item, "updated_at"),
    )


def _state(item: Mapping[str, Value]) -> NamespaceState:
    try:
        return NamespaceState(text(item, "state"))
    except ValueError:
        raise UnknownShape(item, "state is not known") from None


def _keys(namespace: Namespace) -> tuple[keys.Key, keys.Key]:
    return keys.namespace_by_name(namespace.name), keys.namespace_by_id(namespace.namespace_id)
