"""Marks: a token, a family of tokens, or all older tokens of a client are worth nothing any more.

A mark outlives the last token that it is about, by far more than clocks may differ. A used refresh token has one too:
whoever meets it again knows that somebody has a copy.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sluice.core.identity import MARK_BEYOND_MS, REFRESH_MS, Bearer, Claims, TokenType
from sluice.repository import keys, schema
from sluice.repository.requests import PutRequest, TransactWrite
from sluice.repository.shapes import UnknownShape, check_kind, optional_whole, text, whole
from sluice.repository.wire import Item, Value

REVOKED: Final = "revoked"


class MarkKind(StrEnum):
    ACCESS = "access"
    REFRESH = "refresh"
    FAMILY = "family"
    CLIENT = "client"


@dataclass(frozen=True, slots=True)
class Mark:
    """`expires_at_ms`: when the last token that it is about ends. `min_generation`: of a client's mark only."""

    kind: MarkKind
    namespace: str
    client_id: str
    revoked_at_ms: int
    expires_at_ms: int
    min_generation: int | None = None


def token_mark_put(claims: Claims, now_ms: int) -> PutRequest:
    """Of this token alone."""
    kind = MarkKind.REFRESH if claims.token_type is TokenType.REFRESH else MarkKind.ACCESS
    bearer = claims.bearer
    mark = Mark(kind, bearer.namespace, bearer.client_id, now_ms, claims.expires_at_ms)
    return {"Item": encode_mark(keys.revoked_token(claims.token_id), mark)}


def family_mark_put(claims: Claims, now_ms: int) -> PutRequest:
    """Of every token that came from the same login, also of those that are given out at this moment."""
    bearer = claims.bearer
    mark = Mark(MarkKind.FAMILY, bearer.namespace, bearer.client_id, now_ms, now_ms + REFRESH_MS)
    return {"Item": encode_mark(keys.revoked_family(claims.family), mark)}


def client_mark_put(namespace: str, client_id: str, min_generation: int, now_ms: int) -> TransactWrite:
    """By generation, not by time: clocks differ. Whoever puts it also changes the client, which orders the marks."""
    mark = Mark(MarkKind.CLIENT, namespace, client_id, now_ms, now_ms + REFRESH_MS, min_generation)
    return {"Put": {"Item": encode_mark(keys.revoked_client(client_id), mark)}}


def use_writes(claims: Claims, now_ms: int) -> list[TransactWrite]:
    """Uses a refresh token up: first its mark, if there is none; then that its family and its client allow it."""
    bearer = claims.bearer
    return [
        {"Put": {**token_mark_put(claims, now_ms), "ConditionExpression": "attribute_not_exists(PK)"}},
        {
            "ConditionCheck": {
                "Key": {**keys.revoked_family(claims.family).attributes},
                "ConditionExpression": "attribute_not_exists(PK)",
            }
        },
        {
            "ConditionCheck": {
                "Key": {**keys.revoked_client(bearer.client_id).attributes},
                "ConditionExpression": "attribute_not_exists(PK) OR min_gen <= :gen",
                "ExpressionAttributeValues": {":gen": bearer.secret_generation},
            }
        },
    ]


def client_mark_refuses(mark: Mark | None, bearer: Bearer) -> bool:
    return mark is not None and mark.min_generation is not None and bearer.secret_generation < mark.min_generation


def encode_mark(key: keys.Key, mark: Mark) -> Item:
    item: Item = {
        **key.attributes,
        **keys.namespace_index(mark.namespace, key),
        "kind": REVOKED,
        "token_type": mark.kind.value,
        "ns": mark.namespace,
        "client_id": mark.client_id,
        "revoked_at": mark.revoked_at_ms,
        "expires_at": mark.expires_at_ms,
        "created_at": mark.revoked_at_ms,
        # Up: a second too few would be a token too many.
        schema.TTL_ATTRIBUTE: -(-(mark.expires_at_ms + MARK_BEYOND_MS) // 1000),
    }
    if mark.min_generation is not None:
        item["min_gen"] = mark.min_generation
    return item


def decode_mark(item: Mapping[str, Value]) -> Mark:
    check_kind(item, REVOKED)
    try:
        kind = MarkKind(text(item, "token_type"))
    except ValueError:
        raise UnknownShape(item, "token_type is not known") from None
    return Mark(
        kind=kind,
        namespace=text(item, "ns"),
        client_id=text(item, "client_id"),
        revoked_at_ms=whole(item, "revoked_at"),
        expires_at_ms=whole(item, "expires_at"),
        min_generation=optional_whole(item, "min_gen"),
    )
