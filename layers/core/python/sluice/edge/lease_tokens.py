"""Leases as clients carry them: signed for one namespace, compact, and opaque.

Inside is a JSON array, packed where that is shorter. Amounts stand in the order of the names, so that a name is
written once however many buckets gave. Whatever is wrong with a token, the answer is the same.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from sluice.core.errors import InvalidLease
from sluice.core.lease import Lease, LeaseMember, Share
from sluice.services.signing import Signer

TOKEN_CHARACTERS_MAX: Final = 8192

_PLAIN: Final = b"j"
_PACKED: Final = b"z"
# Far above what the largest lease unpacks to.
_UNPACKED_BYTES_MAX: Final = 64 * 1024
_PLAIN_LEASE: Final = 2
_LEASE_WITH_HOLD: Final = 3


def write_token(signer: Signer, lease: Lease) -> str:
    token = _signed(signer, lease)
    if len(token) <= TOKEN_CHARACTERS_MAX:
        return token
    # Dozens of shards with ten limits each. What the others gave then goes back to the first: the sum is the same.
    first_shares = tuple(replace(member, shares=member.shares[:1]) for member in lease.members)
    return _signed(signer, replace(lease, members=first_shares))


def _signed(signer: Signer, lease: Lease) -> str:
    names = list(lease.consumed)
    content = [
        _LEASE_WITH_HOLD if lease.holds else _PLAIN_LEASE,
        lease.lease_id,
        lease.entity,
        lease.resource,
        lease.expires_at_ms,
        names,
        list(lease.consumed.values()),
        [_written_member(member, names) for member in lease.members],
    ]
    text = json.dumps(content, separators=(",", ":")).encode()
    packed = zlib.compress(text, level=9)
    payload = _PACKED + packed if len(packed) < len(text) else _PLAIN + text
    return signer.sign(_purpose(lease.namespace), payload)


def read_token(signer: Signer, namespace: str, token: str) -> Lease:
    """The lease, if it was given in this namespace. InvalidLease for everything else."""
    if len(token) > TOKEN_CHARACTERS_MAX:
        raise InvalidLease
    payload = signer.verify(_purpose(namespace), token)
    if payload is None:
        raise InvalidLease
    try:
        return _read_lease(namespace, json.loads(_unpacked(payload)))
    # Signed by us, and yet not understood: written by another version.
    except (zlib.error, ValueError, TypeError, LookupError, RecursionError):
        raise InvalidLease from None


def _purpose(namespace: str) -> str:
    return f"lease:{namespace}"


def _written_member(member: LeaseMember, names: Sequence[str]) -> list[Any]:
    shares = [
        [share.shard, share.generation, [share.amounts_milli.get(name) for name in names]] for share in member.shares
    ]
    return [member.entity, member.call_fingerprint, shares]


def _unpacked(payload: bytes) -> bytes:
    how, content = payload[:1], payload[1:]
    if how == _PLAIN:
        return content
    if how != _PACKED:
        raise ValueError("neither plain nor packed")
    unpacking = zlib.decompressobj()
    text = unpacking.decompress(content, _UNPACKED_BYTES_MAX)
    if not unpacking.eof:
        raise ValueError("cut, or too long")
    return text


def _read_lease(namespace: str, content: Any) -> Lease:
    version, lease_id, entity, resource, expires_at_ms, names, consumed, members = content
    if version not in (_PLAIN_LEASE, _LEASE_WITH_HOLD):
        raise ValueError("another version")
    return Lease(
        lease_id=_text(lease_id),
        namespace=namespace,
        entity=_text(entity),
        resource=_text(resource),
        consumed=_amounts(names, consumed),
        members=tuple(_read_member(member, names) for member in members),
        expires_at_ms=_whole(expires_at_ms),
        holds=version == _LEASE_WITH_HOLD,
    )


def _read_member(content: Any, names: Sequence[Any]) -> LeaseMember:
    entity, call_fingerprint, shares = content
    read = tuple(
        Share(_whole(shard), _whole(generation), _amounts(names, amounts)) for shard, generation, amounts in shares
    )
    if not read:
        raise ValueError("a member without shares")
    return LeaseMember(_text(entity), read, None if call_fingerprint is None else _text(call_fingerprint))


def _amounts(names: Sequence[Any], amounts: Sequence[Any]) -> Mapping[str, int]:
    pairs = zip(names, amounts, strict=True)
    return {_text(name): _whole(amount) for name, amount in pairs if amount is not None}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError("not a whole number")
    return value
