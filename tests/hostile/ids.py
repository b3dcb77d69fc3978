"""Ids that were made to collide: with one another, with parts of keys, and with what an encoding makes of them."""

from collections.abc import Sequence
from random import Random
from typing import Final

from sluice.repository import keys

_SIGNS: Final = ("%", "#", "/", "!", "_", ":", "$", "-", ".", " ", "\x00", "\n", "\r", "\x1f", "\x7f", "\x85", "\x9f")
_ESCAPES: Final = ("%23", "%2F", "%2f", "%21", "%25", "%00", "%2", "%%", "%252F", "%ED%A0%80", "+", "&#47;")
_WORDS: Final = (
    *("ENTITY#", "BUCKET#", "RESOURCE#", "SYSTEM#", "PARENT#", "CHILD#", "LEASE#", "JOB#", "AUDIT#", "IDEMPOTENCY#"),
    *(
        "CLIENT#",
        "TOKEN#",
        "client:",
        "APPS",
        "#ORG",
        "#APP",
        "#CREDENTIALS",
        "#REVOKED",
        "#USAGE#",
        "#hour#",
        "$client:",
    ),
    *("#META", "#STATE", "#CONFIG", "#CONFIG#", "#ANSWER", "#VERSION", "#NAMESPACE#", "#NSID#", "#AUDIT#"),
    *("PRICE#", "EVENT#", "COST#", "TOTAL#", "STICKY#", "DIRTY#", "#LABEL#", "#PROFILE#", "#DAY#", "20270115"),
    *("BUDGET#", "HOLDS#", "#HOLD", "#LEDGER#0", "#ALERT#", "BUDGETS"),
    *("ENTITIES", "RESOURCES", "ENTITY_CONFIG", "JOBS", "_default_", "$SYSTEM", "$RESOURCE:", "_/", "/BUCKET#"),
)
_NUMBERS: Final = ("0", "1", "7", "8", "00", "01", "10", "15", "16", "-1", "1.0", "0x1", "1e3", "000001800000000000")
_LETTERS: Final = ("a", "aa", "A", "b", "ab", "user", "User", "r", "gpt-4")
_LONG: Final = ("z" * 128, "x" * 1000, "/" * 1000, "é" * 500)
# Two ways to write one letter, signs that lower to others, no sign at all, and halves of one.
_UNICODE: Final = (
    *("é", "e\u0301", "\u212a", "K", "\u017f", "\u0130", "ß"),
    *("\ufeff", "\u200b", "\u202e", "\uffff", "\U0001f600"),
)
_HALVES: Final = ("\ud800", "\udbff", "\udc00", "\udfff", "\ud83d", "\ude00")
_PIECES: Final = _SIGNS + _ESCAPES + _WORDS + _NUMBERS + _LETTERS + _UNICODE + _HALVES


def hostile_ids(count: int, seed: int) -> Sequence[str]:
    """So many different ones; among them, beginnings, continuations and encodings of others."""
    random = Random(seed)
    made: dict[str, None] = dict.fromkeys(("", *_PIECES))
    pool = list(made)
    made.update(dict.fromkeys(_LONG))
    while len(made) < count:
        for one in _next(random, pool):
            if one not in made:
                made[one] = None
                pool.append(one)
    return list(made)[:count]


def _next(random: Random, pool: Sequence[str]) -> Sequence[str]:
    some, other = random.choice(pool), random.choice(pool)
    match random.randrange(6):
        case 0:
            return [some[: random.randrange(len(some) + 1)]]
        case 1:
            return [keys.encode(some), keys.encode(keys.encode(some))] if len(some) < 40 else []
        case 2:
            return [some + random.choice(_SIGNS) + other] if len(some) + len(other) < 60 else []
        case 3:
            sign = random.choice(_SIGNS)
            left, _, right = some.partition(sign)
            return [left, right, right + sign + left]
        case _:
            return ["".join(random.choices(_PIECES, k=random.randint(1, 5)))]
