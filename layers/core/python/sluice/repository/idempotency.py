"""The record of an answer that was given under an Idempotency-Key."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sluice.repository import keys, schema
from sluice.repository.requests import TransactWrite
from sluice.repository.shapes import check_kind, text, whole
from sluice.repository.wire import Item, Value

IDEMPOTENT_ANSWER: Final = "idempotent_answer"
KEPT_S: Final = 24 * 3600
# An id never begins with it.
_NOBODY: Final = "-"


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """Of one caller: the same key of another one is another key. `body_hash`: what the key was sent with."""

    namespace: str
    caller: str | None
    text: str
    body_hash: str

    @property
    def item_key(self) -> keys.Key:
        return keys.idempotent_answer(self.namespace, self.caller or _NOBODY, self.text)


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    body_hash: str
    answer: str
    expires_at_s: int


def put_answer(key: IdempotencyKey, answer: str, now_ms: int) -> TransactWrite:
    """If there is none, or one that is past its time: those linger until they are removed."""
    item: Item = {
        **key.item_key.attributes,
        "kind": IDEMPOTENT_ANSWER,
        "body_hash": key.body_hash,
        "answer": answer,
        "created_at": now_ms,
        schema.TTL_ATTRIBUTE: now_ms // 1000 + KEPT_S,
    }
    return {
        "Put": {
            "Item": item,
            "ConditionExpression": "attribute_not_exists(PK) OR #ttl <= :now",
            "ExpressionAttributeNames": {"#ttl": schema.TTL_ATTRIBUTE},
            "ExpressionAttributeValues": {":now": now_ms // 1000},
        }
    }


def decode_answer(item: Mapping[str, Value]) -> RecordedAnswer:
    check_kind(item, IDEMPOTENT_ANSWER)
    return RecordedAnswer(text(item, "body_hash"), text(item, "answer"), whole(item, schema.TTL_ATTRIBUTE))
