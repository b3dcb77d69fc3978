"""Clients and marks as they are stored."""

from collections.abc import Mapping
from typing import Any

import pytest

from sluice.core.identity import Bearer, Claims, Role, TokenType
from sluice.repository import keys
from sluice.repository.clients import (
    Client,
    StoredSecret,
    client_delete,
    client_put,
    client_replace,
    decode_client,
    encode_client,
)
from sluice.repository.revocations import (
    Mark,
    MarkKind,
    client_mark_put,
    client_mark_refuses,
    decode_mark,
    family_mark_put,
    token_mark_put,
    use_writes,
)
from sluice.repository.shapes import UnknownShape

NOW_MS = 1_800_000_000_001
DAY_S = 86_400
HOUR_S = 3600
LEEWAY_S = 10
SECRETS = (StoredSecret(2, "hash-2", 5, 99), StoredSecret(3, "hash-3", 9, None))
CLIENT = Client("client/1", "ns", "chat", Role.APP, 3, SECRETS, 7, 5, 9)
BEARER = Bearer("client/1", "ns", "chat", Role.APP, 3)


def claims(token_type: TokenType, expires_at_ms: int) -> Claims:
    return Claims(BEARER, token_type, "jti", "fam", 0, expires_at_ms)


def test_a_client_is_read_as_it_was_written() -> None:
    item = encode_client(CLIENT)
    assert decode_client(item) == CLIENT
    assert item["PK"] == "_/CLIENT#client%2F1"
    assert item["SK"] == "#CREDENTIALS"
    # The purge of a namespace finds what is about it in the registry.
    assert str(item["GSI4PK"]).startswith("ns#")
    assert "expires_at" not in item["secrets"][1]  # type: ignore[index,operator]


def test_hashes_are_not_shown() -> None:
    assert "hash-2" not in repr(CLIENT)


@pytest.mark.parametrize(
    "damage",
    [
        {"kind": "other"},
        {"secrets": "none"},
        {"secrets": ["none"]},
        {"secrets": [{"gen": 1, "created_at": 1}]},
        {"secrets": [{"gen": True, "hash": "h", "created_at": 1}]},
        {"role": "king"},
        {"gen": "1"},
        {"ns": None},
    ],
)
def test_an_unknown_shape_is_not_guessed_at(damage: Mapping[str, Any]) -> None:
    with pytest.raises(UnknownShape):
        decode_client({**encode_client(CLIENT), **damage})


def test_a_secret_ends_at_its_end() -> None:
    ending = StoredSecret(1, "hash", 0, 100)
    assert [ending.is_valid(now_ms) for now_ms in (99, 100, 101)] == [True, False, False]
    assert SECRETS[1].is_valid(10**15)
    assert CLIENT.valid_secrets(99) == SECRETS[1:]


def test_changes_are_guarded_by_what_was_seen() -> None:
    assert client_put(CLIENT)["Put"]["ConditionExpression"] == "attribute_not_exists(PK)"
    replaced, deleted = client_replace(CLIENT, CLIENT)["Put"], client_delete(CLIENT)["Delete"]
    for request in (replaced, deleted):
        assert request["ConditionExpression"] == "v = :seen"
        assert request["ExpressionAttributeValues"] == {":seen": 7}


@pytest.mark.parametrize(("token_type", "kind"), [(TokenType.ACCESS, "access"), (TokenType.REFRESH, "refresh")])
def test_the_mark_of_a_token_outlives_it_by_leeway_and_an_hour(token_type: TokenType, kind: str) -> None:
    item = token_mark_put(claims(token_type, NOW_MS // 1000 * 1000 + 60_000), NOW_MS)["Item"]
    assert item["ttl"] == NOW_MS // 1000 + 60 + LEEWAY_S + HOUR_S
    assert item["token_type"] == kind
    assert (item["PK"], item["SK"]) == ("_/TOKEN#jti", "#REVOKED")
    assert str(item["GSI4PK"]).startswith("ns#")


def test_marks_of_families_and_clients_outlive_every_token_that_there_may_be() -> None:
    family = family_mark_put(claims(TokenType.REFRESH, NOW_MS + 1), NOW_MS)["Item"]
    client = client_mark_put("ns", "client/1", 4, NOW_MS)["Put"]["Item"]
    for item in (family, client):
        # Up to the next second: the mark was made one millisecond into this one.
        assert item["ttl"] == NOW_MS // 1000 + 30 * DAY_S + LEEWAY_S + HOUR_S + 1
        assert item["revoked_at"] == NOW_MS
    assert family["PK"] == "_/TOKEN#fam"
    assert client["PK"] == "_/TOKEN#client:client%2F1"
    assert decode_mark(client) == Mark(MarkKind.CLIENT, "ns", "client/1", NOW_MS, NOW_MS + 30 * DAY_S * 1000, 4)
    assert decode_mark(family).min_generation is None


@pytest.mark.parametrize("damage", [{"kind": "x"}, {"token_type": "x"}, {"min_gen": "4"}, {"client_id": 1}])
def test_an_unknown_mark_is_not_guessed_at(damage: Mapping[str, Any]) -> None:
    with pytest.raises(UnknownShape):
        decode_mark({**client_mark_put("ns", "client/1", 4, NOW_MS)["Put"]["Item"], **damage})


def test_a_clients_mark_refuses_older_generations_only() -> None:
    def mark(min_generation: int | None) -> Mark:
        return Mark(MarkKind.CLIENT, "ns", "client/1", 0, 0, min_generation)

    assert [client_mark_refuses(mark(least), BEARER) for least in (2, 3, 4)] == [False, False, True]
    assert not client_mark_refuses(None, BEARER)
    assert not client_mark_refuses(mark(None), BEARER)


def test_using_a_refresh_token_asks_family_and_client_in_the_same_transaction() -> None:
    used, family, client = use_writes(claims(TokenType.REFRESH, NOW_MS), NOW_MS)
    assert used["Put"]["ConditionExpression"] == "attribute_not_exists(PK)"
    assert keys.key_of(used["Put"]["Item"]) == keys.revoked_token("jti")
    assert keys.key_of(family["ConditionCheck"]["Key"]) == keys.revoked_family("fam")
    assert keys.key_of(client["ConditionCheck"]["Key"]) == keys.revoked_client("client/1")
    assert client["ConditionCheck"]["ExpressionAttributeValues"] == {":gen": 3}
