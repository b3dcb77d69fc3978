"""Leases as tokens: what comes back, how long they get, and everything that is no lease."""

import json
import random
import string
import zlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.errors import InvalidLease
from sluice.core.lease import Lease, LeaseMember, Share
from sluice.core.lease_changes import changes, nothing
from sluice.edge.lease_tokens import TOKEN_CHARACTERS_MAX, read_token, write_token
from sluice.services.signing import Signer, SigningKeys


class FixedKeys:
    def known(self) -> SigningKeys:
        return SigningKeys(b"k" * 32)

    looked_up = known


SIGNER = Signer(FixedKeys())
names = st.lists(st.from_regex(r"\A[a-z][a-z0-9_]{0,31}\Z"), min_size=1, max_size=10, unique=True)
ids = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._:@+-]{0,127}\Z")


@st.composite
def leases(draw: st.DrawFn) -> Lease:
    limits = draw(names)
    amounts = st.dictionaries(st.sampled_from(limits), st.integers(0, 10**15))
    shares = st.builds(Share, st.integers(0, 15), st.integers(1, 10**19), amounts)
    member = st.builds(LeaseMember, ids, st.lists(shares, min_size=1, max_size=4).map(tuple), st.none() | ids)
    return Lease(
        lease_id=draw(st.from_regex(r"\A[0-9a-f]{32}\Z")),
        namespace=draw(ids),
        entity=draw(ids),
        resource=draw(ids),
        consumed={name: draw(st.integers(0, 10**12)) for name in limits},
        members=tuple(draw(st.lists(member, max_size=4))),
        expires_at_ms=draw(st.integers(0, 10**14)),
        holds=draw(st.booleans()),
    )


@given(leases())
def test_a_lease_comes_back_as_it_was(lease: Lease) -> None:
    assert read_token(SIGNER, lease.namespace, write_token(SIGNER, lease)) == lease


@given(leases(), ids)
def test_a_lease_of_another_namespace_is_none(lease: Lease, other: str) -> None:
    if other != lease.namespace:
        with pytest.raises(InvalidLease):
            read_token(SIGNER, other, write_token(SIGNER, lease))


def usual() -> Lease:
    member = LeaseMember("user-1", (Share(0, 1_800_000_000_000_123_456, {"rpm": 1_000, "tpm": 500_000}),))
    return Lease(
        "0123456789abcdef" * 2, "default", "user-1", "gpt-4", {"rpm": 1, "tpm": 500}, (member,), 1_800_000_000_000
    )


def test_the_usual_token_is_short() -> None:
    assert len(write_token(SIGNER, usual())) < 260


def gathered(limit_count: int, amount_max_milli: int) -> Lease:
    """Four members of sixteen shards, the longest ids and names, and nothing that repeats."""
    draw = random.Random(7)

    def word(length: int) -> str:
        return "".join(draw.choices(string.ascii_lowercase + string.digits, k=length))

    limits = [f"a{word(31)}" for _ in range(limit_count)]
    members = tuple(
        LeaseMember(
            word(128),
            tuple(
                Share(
                    shard, draw.randrange(10**18, 10**19), {name: draw.randrange(amount_max_milli) for name in limits}
                )
                for shard in range(16)
            ),
            word(16),
        )
        for _ in range(4)
    )
    return Lease(word(32), "ns", word(128), word(128), dict.fromkeys(limits, 10**12), members, 1_800_000_000_000)


def test_a_lease_from_sixty_four_shards_fits() -> None:
    lease = gathered(limit_count=3, amount_max_milli=10**12)
    token = write_token(SIGNER, lease)
    assert len(token) <= TOKEN_CHARACTERS_MAX
    assert read_token(SIGNER, "ns", token) == lease


def test_the_largest_lease_keeps_its_first_shares() -> None:
    """Hole: a token that we refuse later as too long could not give anything back."""
    largest = gathered(limit_count=10, amount_max_milli=10**15)
    token = write_token(SIGNER, largest)
    assert len(token) <= TOKEN_CHARACTERS_MAX
    read = read_token(SIGNER, "ns", token)
    assert read.consumed == largest.consumed
    assert [member.shares for member in read.members] == [member.shares[:1] for member in largest.members]
    amounts = dict(read.consumed)
    for before, after in ((amounts, nothing(amounts)), (nothing(amounts), amounts)):
        for change in changes(read, before, after):
            moved = change.debits_milli or change.credits_milli[0]
            assert moved == {name: amount * 1_000 for name, amount in amounts.items()}


def test_every_cut_and_every_changed_character_is_refused_alike() -> None:
    token = write_token(SIGNER, usual())
    wrong = [token[:length] for length in range(len(token))]
    wrong += [
        token[:position] + ("A" if token[position] != "A" else "B") + token[position + 1 :]
        for position in range(len(token))
    ]
    wrong += [token + "A", token + "=", token * 2, f" {token}", f"{token}\n", "é", "\ud800", "\0", "A" * 50]
    for text in wrong:
        with pytest.raises(InvalidLease) as raised:
            read_token(SIGNER, "default", text)
        assert (raised.value.field, raised.value.detail) == ("lease", "is not a valid lease, or one of another entity")


def test_a_token_that_is_too_long_is_not_even_looked_at() -> None:
    class Unused(FixedKeys):
        def known(self) -> SigningKeys:
            raise AssertionError

    with pytest.raises(InvalidLease):
        read_token(Signer(Unused()), "default", "A" * (TOKEN_CHARACTERS_MAX + 1))


def test_a_hold_makes_no_token_longer() -> None:
    holding = replace(usual(), holds=True)
    assert read_token(SIGNER, "default", write_token(SIGNER, holding)).holds
    assert len(write_token(SIGNER, holding)) == len(write_token(SIGNER, usual()))


GOOD: list[Any] = [2, "id", "e", "r", 5, ["rpm"], [1], [["e", None, [[0, 7, [1000]]]]]]


def changed(position: int, value: Any) -> bytes:
    return b"j" + json.dumps([*GOOD[:position], value, *GOOD[position + 1 :]]).encode()


def test_the_content_that_the_others_are_made_from_is_good() -> None:
    lease = read_token(SIGNER, "ns", SIGNER.sign("lease:ns", changed(0, 2)))
    assert lease == Lease("id", "ns", "e", "r", {"rpm": 1}, (LeaseMember("e", (Share(0, 7, {"rpm": 1000}),)),), 5)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"j",
        b"z",
        b"x[]",
        b"j[]",
        b"j{}",
        b"j7",
        b"jnull",
        b"j" + b"[" * 6_000,
        b"j" + b"1" * 5_000,
        b"j\xff",
        b"znot packed",
        b"z" + zlib.compress(b"[]")[:-3],
        b"z" + zlib.compress(b" " * 1_000_000 + b"[]"),
        changed(0, 1),
        changed(0, 4),
        changed(0, [3]),
        changed(1, 7),
        changed(2, None),
        changed(3, None),
        changed(4, "5"),
        changed(4, 5.0),
        changed(4, True),
        changed(5, ["rpm", "tpm"]),
        changed(5, [7]),
        changed(5, 7),
        changed(6, ["1"]),
        changed(7, [["e", None, []]]),
        changed(7, [["e", 7, [[0, 7, [1000]]]]]),
        changed(7, [["e", None, [[0, 7]]]]),
        changed(7, [["e", None, [["0", 7, [1000]]]]]),
        changed(7, [["e", None, [[0, 7, [1000, 1000]]]]]),
        changed(7, [["e"]]),
        changed(7, 7),
    ],
)
def test_what_we_signed_but_do_not_understand_is_no_lease(payload: bytes) -> None:
    with pytest.raises(InvalidLease):
        read_token(SIGNER, "ns", SIGNER.sign("lease:ns", payload))
