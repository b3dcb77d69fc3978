"""Audit events as items, and the words that they use."""

import re

import pytest

from sluice.core.audit import BY_SYSTEM, Action, Author, entity_target, limits_subject, limits_target
from sluice.core.limits import DEFAULT_RESOURCE, SYSTEM, Limit, OnUnavailable, Scope
from sluice.edge.models import ID_PATTERN
from sluice.repository.audit import AuditEvent, audit_put, audit_query, decode_audit_event, encode_audit_event
from sluice.repository.entities import entity_image
from sluice.repository.items import Entity, StoredLimits
from sluice.repository.limits import decode_scoped_limits, limits_image, limits_item
from sluice.repository.shapes import UnknownShape
from sluice.repository.wire import item_from_wire, item_to_wire

AT_MS = 1_800_000_000_000
EVENT = AuditEvent(
    event_id="e1",
    subject="user-1",
    at_ms=AT_MS,
    author=Author("client-7", "request-9"),
    action=Action.ENTITY_PUT,
    target="entities/user-1",
    before=None,
    after={"name": None, "metadata": {"seats": 3}},
)


@pytest.mark.parametrize(
    ("scope", "subject", "target"),
    [
        (SYSTEM, "$SYSTEM", "limits/system"),
        (Scope(resource="gpt-4"), "$RESOURCE:gpt-4", "limits/resources/gpt-4"),
        (Scope("user-1", "gpt-4"), "user-1", "limits/entities/user-1/gpt-4"),
        (Scope("user-1", DEFAULT_RESOURCE), "user-1", "limits/entities/user-1/_default_"),
    ],
)
def test_subject_and_target_of_limits(scope: Scope, subject: str, target: str) -> None:
    assert (limits_subject(scope), limits_target(scope)) == (subject, target)


def test_an_entity_is_named_by_its_path() -> None:
    assert entity_target("user-1") == "entities/user-1"


def test_no_entity_can_be_taken_for_a_level() -> None:
    for subject in (limits_subject(SYSTEM), limits_subject(Scope(resource="r"))):
        assert re.fullmatch(ID_PATTERN, subject) is None


def test_an_event_as_an_item() -> None:
    assert encode_audit_event("ns", EVENT) == {
        "PK": "ns/AUDIT#user-1",
        "SK": "#AUDIT#001800000000000#e1",
        "GSI4PK": encode_audit_event("ns", EVENT)["GSI4PK"],
        "GSI4SK": "ns/AUDIT#user-1",
        "kind": "audit",
        "ns": "ns",
        "event_id": "e1",
        "subject": "user-1",
        "at_ms": AT_MS,
        "actor": "client-7",
        "action": "entity.put",
        "target": "entities/user-1",
        "after": {"name": None, "metadata": {"seats": 3}},
        "request_id": "request-9",
        "created_at": AT_MS,
        "ttl": 1_800_000_000 + 90 * 86_400,
    }


@pytest.mark.parametrize("before", [None, {}, {"name": "x", "list": [1, "a", None, True]}])
@pytest.mark.parametrize("after", [None, {}, {"name": "x", "list": [1, "a", None, True]}])
def test_an_event_comes_back_as_it_was(before: None, after: None) -> None:
    event = AuditEvent("e1", "$SYSTEM", AT_MS, BY_SYSTEM, "limits.delete", "limits/system", before, after)
    assert decode_audit_event(item_from_wire(item_to_wire(encode_audit_event("ns", event)))) == event


@pytest.mark.parametrize(
    "wrong",
    [{"kind": "limits"}, {"before": "x"}, {"after": 7}, {"event_id": 7}, {"at_ms": "x"}, {"actor": None}],
)
def test_a_shape_that_is_not_known_raises(wrong: dict[str, object]) -> None:
    item = {**encode_audit_event("ns", EVENT), **wrong}
    with pytest.raises(UnknownShape):
        decode_audit_event(item)  # type: ignore[arg-type]  # on purpose


def test_an_event_is_put_only_once() -> None:
    assert audit_put("ns", EVENT) == {
        "Put": {"Item": encode_audit_event("ns", EVENT), "ConditionExpression": "attribute_not_exists(PK)"}
    }


def test_events_are_sorted_by_time_as_text() -> None:
    """A time with fewer digits is earlier, whatever text says."""
    keys = [
        str(encode_audit_event("ns", AuditEvent("e", "s", at_ms, BY_SYSTEM, "a", "t", None, None))["SK"])
        for at_ms in (9, 10, 999_999_999_999, 1_000_000_000_000, 9_999_999_999_999, 10_000_000_000_000)
    ]
    assert keys == sorted(keys)


def test_a_query_reads_one_subject_of_one_namespace() -> None:
    assert audit_query("ns", "$RESOURCE:r") == {
        "KeyConditionExpression": "PK = :subject AND SK >= :first",
        "ExpressionAttributeValues": {":subject": "ns/AUDIT#$RESOURCE:r", ":first": "#AUDIT#000000000000000#"},
        "ScanIndexForward": False,
        "ConsistentRead": True,
    }


@pytest.mark.parametrize("scope", [SYSTEM, Scope(resource="r"), Scope("e", "r"), Scope("e", DEFAULT_RESOURCE)])
def test_limits_remember_their_level(scope: Scope) -> None:
    stored = StoredLimits({"rpm": Limit(1, 2, 3, 4), "tpm": None}, None, 3, 1, 2)
    found = decode_scoped_limits(limits_item("ns", scope, stored))
    assert (found.scope, found.stored) == (scope, stored)


def test_images_are_what_people_see() -> None:
    stored = StoredLimits({"rpm": Limit(1, 2, 3, 4), "tpm": None}, OnUnavailable.ALLOW, 3, 1, 2)
    assert limits_image(stored) == {
        "config_version": 3,
        "limits": {
            "rpm": {"capacity": 1, "burst": 2, "refill_amount": 3, "refill_period_seconds": 4},
            "tpm": None,
        },
        "on_unavailable": "allow",
    }
    entity = Entity("e", None, "p", False, {"a": 1}, 2, 3, 4)
    assert entity_image(entity) == {
        "name": None,
        "parent": "p",
        "cascade": False,
        "metadata": {"a": 1},
        "version": 2,
    }
