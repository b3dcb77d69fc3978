"""Audit events: one item per change, written in the transaction that makes the change.

An event is put only if it is not there. So whoever builds a transaction anew keeps the event with its id and time: if
an earlier try was applied after all, the new one fails on the event and changes nothing a second time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sluice.core.audit import Author
from sluice.repository import keys, schema
from sluice.repository.requests import QueryRequest, TransactWrite
from sluice.repository.shapes import UnknownShape, check_kind, text, whole
from sluice.repository.wire import Item, Value

AUDIT: Final = "audit"
KEPT_S: Final = 90 * 86_400

Image = Mapping[str, Value]
"""What people see of a thing, never a secret."""


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """`subject`: the entity, or `$SYSTEM` or `$RESOURCE:{name}`. `before` and `after` are None where nothing was."""

    event_id: str
    subject: str
    at_ms: int
    author: Author
    action: str
    target: str
    before: Image | None
    after: Image | None


def audit_put(namespace: str, event: AuditEvent) -> TransactWrite:
    """The part of a transaction that tells of it."""
    return {"Put": {"Item": encode_audit_event(namespace, event), "ConditionExpression": "attribute_not_exists(PK)"}}


def audit_query(namespace: str, subject: str, since_ms: int = 0) -> QueryRequest:
    """The newest first. Consistently: whoever made a change finds it."""
    first = keys.audit_event(namespace, subject, since_ms, "")
    return {
        "KeyConditionExpression": "PK = :subject AND SK >= :first",
        "ExpressionAttributeValues": {":subject": first.pk, ":first": first.sk},
        "ScanIndexForward": False,
        "ConsistentRead": True,
    }


def encode_audit_event(namespace: str, event: AuditEvent) -> Item:
    key = keys.audit_event(namespace, event.subject, event.at_ms, event.event_id)
    item: Item = {
        **key.attributes,
        **keys.namespace_index(namespace, key),
        "kind": AUDIT,
        "ns": namespace,
        "event_id": event.event_id,
        "subject": event.subject,
        "at_ms": event.at_ms,
        "actor": event.author.actor,
        "action": str(event.action),
        "target": event.target,
        "request_id": event.author.request_id,
        "created_at": event.at_ms,
        schema.TTL_ATTRIBUTE: event.at_ms // 1000 + KEPT_S,
    }
    if event.before is not None:
        item["before"] = dict(event.before)
    if event.after is not None:
        item["after"] = dict(event.after)
    return item


def decode_audit_event(item: Mapping[str, Value]) -> AuditEvent:
    check_kind(item, AUDIT)
    return AuditEvent(
        event_id=text(item, "event_id"),
        subject=text(item, "subject"),
        at_ms=whole(item, "at_ms"),
        author=Author(text(item, "actor"), text(item, "request_id")),
        action=text(item, "action"),
        target=text(item, "target"),
        before=_image(item, "before"),
        after=_image(item, "after"),
    )


def _image(item: Mapping[str, Value], attribute: str) -> Image | None:
    if attribute not in item:
        return None
    image = item[attribute]
    if not isinstance(image, dict):
        raise UnknownShape(item, f"{attribute} is not a map")
    return image
