"""Credentials on a real engine: rotation at the edges of its grace, at its most, and by two operators at once."""

import re
from dataclasses import replace

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.errors import NotFound, RotationConflict, Unauthorized, WrongCredentials
from sluice.core.identity import GRACE_HOURS_MAX, SECRETS_MAX, Role
from sluice.repository import keys
from sluice.repository.audit import audit_query, decode_audit_event
from sluice.repository.clients import client_put
from sluice.repository.revocations import decode_mark
from sluice.repository.store import Cancelled
from sluice.services.signing import key_id
from sluice.shell import new_token
from tests.fakes import FakeClock
from tests.identities import AUTHOR, HOUR_MS, Credential, Desk, at_the, engine_desk


@pytest.fixture
def desk(dynamodb: DynamoDBClient, table: str, clock: FakeClock) -> Desk:
    return engine_desk(dynamodb, table, clock)


@pytest.fixture
def org(desk: Desk) -> Credential:
    return desk.make_org()


def works(desk: Desk, credential: Credential) -> bool:
    try:
        desk.log_in(credential)
    except WrongCredentials:
        return False
    return True


def test_a_client_is_opaque_and_stands_in_the_callers_transaction(desk: Desk) -> None:
    made = desk.credentials.create("ns", "acme", Role.ORG, 5)
    assert re.fullmatch(r"[A-Za-z0-9]{20}", made.client_id)
    assert desk.store.calls == []
    assert desk.credentials.find(made.client_id) is None
    desk.send(*made.writes)
    found = desk.credentials.find(made.client_id)
    assert found is not None
    assert (found.namespace, found.entity, found.role, found.generation) == ("ns", "acme", Role.ORG, 1)
    taken = desk.store.inner.transact([client_put(replace(found, namespace="other"))], new_token())
    assert isinstance(taken, Cancelled)


@pytest.mark.parametrize("grace_hours", [1, 24, GRACE_HOURS_MAX])
def test_the_old_secret_works_until_the_very_end_of_its_grace(desk: Desk, org: Credential, grace_hours: int) -> None:
    rotated = desk.credentials.rotate(org.client_id, "acme", grace_hours, AUTHOR)
    new = Credential(org.client_id, rotated.client_secret)
    assert rotated.old_secret_expires_at_ms == desk.clock.now_ms + grace_hours * HOUR_MS
    desk.clock.now_ms = rotated.old_secret_expires_at_ms - 1
    assert works(desk, org)
    desk.clock.advance(1)
    assert not works(desk, org)
    desk.clock.advance(1)
    assert not works(desk, org)
    assert works(desk, new)


def test_without_grace_every_older_secret_ends_at_once(desk: Desk, org: Credential) -> None:
    second = desk.rotate(org.client_id, 168)
    rotated = desk.credentials.rotate(org.client_id, "acme", 0, AUTHOR)
    assert rotated.old_secret_expires_at_ms == desk.clock.now_ms
    assert not works(desk, org)
    assert not works(desk, second)
    assert works(desk, Credential(org.client_id, rotated.client_secret))
    found = desk.credentials.find(org.client_id)
    assert found is not None
    assert [secret.generation for secret in found.secrets] == [3]


def test_each_older_secret_keeps_its_own_end(desk: Desk, org: Credential) -> None:
    second = desk.rotate(org.client_id, 168)
    third = desk.rotate(org.client_id, 1)
    desk.clock.advance(HOUR_MS)
    assert works(desk, org)
    assert not works(desk, second)
    assert works(desk, third)
    desk.clock.advance(167 * HOUR_MS)
    assert not works(desk, org)
    assert works(desk, third)


def test_five_secrets_are_valid_and_a_sixth_is_refused_until_one_ends(desk: Desk, org: Credential) -> None:
    known = [org, *(desk.rotate(org.client_id, 2 + count) for count in range(SECRETS_MAX - 1))]
    assert all(works(desk, credential) for credential in known)
    with pytest.raises(RotationConflict):
        desk.rotate(org.client_id, 24)
    assert all(works(desk, credential) for credential in known)
    desk.clock.advance(2 * HOUR_MS - 1)
    with pytest.raises(RotationConflict):
        desk.rotate(org.client_id, 24)
    desk.clock.advance(1)
    sixth = desk.rotate(org.client_id, 24)
    assert [works(desk, credential) for credential in (*known, sixth)] == [False, True, True, True, True, True]


def test_with_five_secrets_a_rotation_without_grace_still_helps(desk: Desk, org: Credential) -> None:
    for _ in range(SECRETS_MAX - 1):
        desk.rotate(org.client_id, 168)
    assert works(desk, desk.rotate(org.client_id, 0))


def test_of_two_rotations_at_once_one_wins_and_nobody_is_locked_out(desk: Desk, org: Credential) -> None:
    other = desk.other_process(8)
    won: list[Credential] = []
    at_the("transact", desk, lambda: won.append(other.rotate(org.client_id, 24)))
    with pytest.raises(RotationConflict):
        desk.rotate(org.client_id, 24)
    # What either operator knew, and what the winner was told.
    assert works(desk, org)
    assert works(desk, won[0])
    desk.clock.advance(24 * HOUR_MS)
    assert not works(desk, org)
    assert works(desk, won[0])
    found = desk.credentials.find(org.client_id)
    assert found is not None
    assert found.generation == 2


def test_a_login_that_renews_a_hash_is_no_rotation(desk: Desk, org: Credential) -> None:
    """Both change the client at once; neither operator has to try again."""
    desk.credential_keys.rotate(b"d" * 64)
    desk.credential_keys.looked_up()
    other = desk.other_process(8)
    at_the("transact", desk, lambda: assert_works(other, org))
    new = desk.rotate(org.client_id, 24)
    assert works(desk, org)
    assert works(desk, new)


def assert_works(desk: Desk, credential: Credential) -> None:
    assert works(desk, credential)


def test_hashes_follow_the_key_as_their_secrets_come_by(desk: Desk, org: Credential) -> None:
    """So the key can be rotated again and again."""
    for number in range(3):
        new_key = bytes([ord("d") + number]) * 64
        desk.credential_keys.rotate(new_key)
        desk.credential_keys.looked_up()
        assert works(desk, org)
        found = desk.credentials.find(org.client_id)
        assert found is not None
        assert found.secrets[0].hash.split("$")[1] == key_id(new_key)
        desk.store.taken_calls()
        assert works(desk, org)
        assert "transact" not in desk.store.taken_calls()


def test_a_rotation_tells_who_and_what_but_no_secret(desk: Desk, org: Credential) -> None:
    rotated = desk.rotate(org.client_id, 24)
    (item,) = desk.store.query(audit_query("ns", "acme")).items
    event = decode_audit_event(item)
    assert (event.action, event.author, event.target) == ("credentials.rotate", AUTHOR, f"clients/{org.client_id}")
    assert event.before is not None
    assert event.after is not None
    assert (event.before["generation"], event.after["generation"]) == (1, 2)
    assert rotated.client_secret not in str(item)
    assert "hmac" not in str(item)


def test_what_is_shown_once_is_not_shown_by_accident(desk: Desk, org: Credential) -> None:
    made = desk.credentials.create("ns", "acme", Role.ORG, 5)
    rotated = desk.credentials.rotate(org.client_id, "acme", 24, AUTHOR)
    for shown in (made, rotated, desk.credentials.find(org.client_id)):
        assert "sk_" not in repr(shown)
        assert "hmac" not in repr(shown)


def test_a_client_that_is_not_there_can_not_be_rotated(desk: Desk) -> None:
    with pytest.raises(NotFound):
        desk.rotate("nobody", 24)


def test_the_end_of_a_client_ends_its_tokens(desk: Desk, org: Credential) -> None:
    new = desk.rotate(org.client_id, 24)
    issued = [desk.log_in(org), desk.log_in(new)]
    found = desk.credentials.find(org.client_id)
    assert found is not None
    desk.send(*desk.credentials.end_writes(found))
    assert not works(desk, new)
    for tokens in issued:
        with pytest.raises(Unauthorized):
            desk.use(tokens.access_token)
        with pytest.raises(WrongCredentials):
            desk.logins.refresh(tokens.refresh_token)
    mark = desk.store.get(keys.revoked_client(org.client_id))
    assert mark is not None
    assert decode_mark(mark).min_generation == 3


def test_a_client_that_was_rotated_meanwhile_is_not_ended(desk: Desk, org: Credential) -> None:
    found = desk.credentials.find(org.client_id)
    assert found is not None
    new = desk.rotate(org.client_id, 24)
    assert isinstance(desk.store.transact(desk.credentials.end_writes(found), new_token()), Cancelled)
    assert works(desk, new)
