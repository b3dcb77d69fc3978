"""Client secrets and the operator's key: hashes, comparisons, and keys that rotate."""

import hmac
import re
from random import Random
from typing import Any

import pytest

from sluice.core.identity import SECRETS_MAX
from sluice.services import client_secrets as module
from sluice.services.client_secrets import ClientSecrets
from sluice.services.operators import Operators
from sluice.services.signing import key_id
from tests.identities import TurningKeys

KEY, NEXT, LAST = b"k" * 64, b"n" * 64, b"l" * 64


def make(keys: TurningKeys) -> ClientSecrets:
    return ClientSecrets(keys, Random(7).randrange)


def test_a_secret_has_256_bits_and_one_form() -> None:
    secrets = make(TurningKeys(KEY))
    drawn = {secrets.draw() for _ in range(100)}
    assert len(drawn) == 100
    assert all(re.fullmatch(r"sk_[A-Za-z0-9_-]{43}", secret) for secret in drawn)
    smallest = ClientSecrets(TurningKeys(KEY), lambda below: 0 if below == 1 << 256 else 1)
    largest = ClientSecrets(TurningKeys(KEY), lambda below: below - 1)
    assert smallest.draw() == "sk_" + "A" * 43
    assert len(largest.draw()) == len("sk_") + 43


def test_the_hash_names_its_scheme_and_key_and_is_salted() -> None:
    secrets = make(TurningKeys(KEY))
    first, second = secrets.hash("sk_a"), secrets.hash("sk_a")
    assert first != second
    assert "sk_a" not in first
    scheme, kid, salt, mac = first.split("$")
    assert (scheme, kid) == ("hmac-sha256", key_id(KEY))
    assert hmac.digest(KEY, bytes.fromhex(salt) + b"sk_a", "sha256").hex() == mac
    assert len(bytes.fromhex(salt)) == 16


def test_it_is_found_wherever_it_stands_and_nothing_else_is() -> None:
    secrets = make(TurningKeys(KEY))
    names = ["sk_a", "sk_b", "sk_c", "sk_d", "sk_e"]
    hashes = [secrets.hash(name) for name in names]
    assert [secrets.find(name, hashes) for name in names] == [0, 1, 2, 3, 4]
    for wrong in ("", "sk_", "sk_a ", "sk_A", "sk_f", "é", "\ud800", "sk_a\0", "x" * 10_000, *hashes):
        assert secrets.find(wrong, hashes) is None
    assert secrets.find("sk_a", []) is None


def test_every_guess_is_compared_equally_often(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    digests: list[int] = []

    class Counting:
        @staticmethod
        def compare_digest(left: Any, right: Any) -> bool:
            compared.append(1)
            return hmac.compare_digest(left, right)

        @staticmethod
        def digest(*arguments: Any) -> bytes:
            digests.append(1)
            return hmac.digest(*arguments)

    secrets = make(TurningKeys(KEY))
    hashes = [secrets.hash(f"sk_{number}") for number in range(SECRETS_MAX)]
    monkeypatch.setattr(module, "hmac", Counting)
    for stored in range(SECRETS_MAX + 1):
        for presented in ("sk_0", f"sk_{SECRETS_MAX - 1}", "sk_none"):
            compared.clear()
            digests.clear()
            secrets.find(presented, hashes[:stored])
            assert (len(compared), len(digests)) == (SECRETS_MAX, SECRETS_MAX)


def test_hashes_outlive_one_rotation_of_the_key_and_name_which_made_them() -> None:
    keys = TurningKeys(KEY)
    hashed = make(keys).hash("sk_a")
    assert make(keys).is_current(hashed)
    after = TurningKeys(NEXT, KEY)
    assert make(after).find("sk_a", [hashed]) == 0
    assert not make(after).is_current(hashed)
    assert make(TurningKeys(LAST, NEXT)).find("sk_a", [hashed]) is None


def test_a_hash_of_a_newer_key_is_looked_up() -> None:
    newer = make(TurningKeys(NEXT, KEY)).hash("sk_a")
    behind = TurningKeys(KEY)
    behind.rotate(NEXT)
    assert make(behind).find("sk_a", [newer]) == 0
    assert behind.look_ups == 1


def test_the_operator_is_known_by_either_key() -> None:
    keys = TurningKeys(KEY, NEXT)
    operators = Operators(keys)
    assert operators.is_operator(KEY.decode())
    assert operators.is_operator(NEXT.decode())
    assert keys.look_ups == 0
    for wrong in ("", KEY.decode()[:-1], KEY.decode() + " ", KEY.decode().upper(), "é", "\ud800", LAST.decode()):
        assert not operators.is_operator(wrong)


def test_no_previous_key_is_not_an_empty_one() -> None:
    operators = Operators(TurningKeys(KEY))
    assert not operators.is_operator("")
    assert not operators.is_operator("\0" * 32)
    assert operators.is_operator(KEY.decode())


def test_a_rotated_operator_key_is_looked_up() -> None:
    keys = TurningKeys(KEY)
    keys.rotate(NEXT)
    assert Operators(keys).is_operator(NEXT.decode())
    assert keys.look_ups == 1
    keys.rotate(LAST)
    assert Operators(keys).is_operator(LAST.decode())
    assert not Operators(keys).is_operator(KEY.decode())
