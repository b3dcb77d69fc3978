"""A table in memory that answers as DynamoDB does, and refuses what DynamoDB refuses. Every call is atomic.

No faults, no waiting: those are the store's (`store.py`). Time comes in as a clock, so that indexes can lag, reads can
be stale and tokens can expire.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from sluice.repository import schema
from sluice.repository.keys import Key
from sluice.repository.requests import DeleteRequest, PutRequest, TransactWrite, UpdateRequest
from sluice.repository.store import Applied, Cancelled, Committed, ConditionFailed, Outcome, TransactOutcome
from sluice.repository.wire import Item, Value
from tests.simulation.expressions import Condition, Placeholders, Update, compile_write
from tests.simulation.indexes import (
    INDEX_KEYS,
    PARTITION_KEY_BYTES_MAX,
    SORT_KEY_BYTES_MAX,
    Index,
    LagMs,
    check_index_keys,
)
from tests.simulation.refusals import IdempotentParameterMismatch, Refusal, ValidationException
from tests.simulation.stream import StreamRecord
from tests.simulation.values import (
    ITEM_BYTES_MAX,
    check_value,
    copied,
    is_flat,
    item_bytes,
    item_bytes_most,
    same,
    text_bytes,
)

TRANSACTION_ITEMS_MAX: Final = 100
TRANSACTION_BYTES_MAX: Final = 4 * 1024 * 1024
TOKEN_LENGTH_MAX: Final = 36
TOKEN_LIFE_MS: Final = 10 * 60 * 1000
VERSIONS_MAX: Final = 16
# AWS leaves items alone whose time is further back than this.
TTL_IGNORED_AFTER_S: Final = 5 * 365 * 86_400
# More than the numbers and names of one request can add.
_GROWTH_BYTES: Final = 8 * 1024
_LONG_AGO_MS: Final = -(10**18)

_KEY_NAMES: Final = frozenset({schema.PARTITION_KEY, schema.SORT_KEY})
_ALL_KEY_NAMES: Final = _KEY_NAMES | INDEX_KEYS.keys()

_NO_PLACEHOLDERS: Final = Placeholders(frozenset(), frozenset(), ())

_PUT: Final = "Put"
_UPDATE: Final = "Update"
_DELETE: Final = "Delete"


class Stored:
    """An item with what it was. `bytes_most`: it is not larger than this; measured only when that matters."""

    __slots__ = ("bytes_most", "flat", "item", "versions")

    def __init__(self) -> None:
        self.item: Item | None = None
        self.bytes_most = 0
        self.flat = True
        self.versions: list[tuple[int, Item | None]] = [(_LONG_AGO_MS, None)]

    def as_of(self, time_ms: int) -> Item | None:
        for written_ms, item in reversed(self.versions):
            if written_ms <= time_ms:
                return item
        return self.versions[0][1]


class _Write(NamedTuple):
    """A write that was judged and not yet made. `failed`: its condition does not hold. `touched`: by an update.

    `flat_old`, `flat_new`: a shallow copy of the item is a whole one.
    """

    key: Key
    verb: str
    old: Item | None
    new: Item | None
    failed: bool
    flat_old: bool
    flat_new: bool = True
    bytes_most: int = 0
    touched: frozenset[str] | None = None


class _Prepared(NamedTuple):
    """A valid request, its expressions compiled."""

    key: Key
    verb: str
    request: Mapping[str, Any]
    condition: Condition | None
    update: Update | None
    values: Mapping[str, Value]


class SimulatedTable:
    def __init__(self, clock_ms: Callable[[], int] = lambda: 0, index_lag_ms: LagMs = lambda _index: 0) -> None:
        self.clock_ms = clock_ms
        self.stream: list[StreamRecord] = []
        self.indexes = {name: Index(name) for name in schema.INDEX_PROJECTIONS}
        self.partitions: dict[str, dict[str, Stored]] = {}
        self.cause: Callable[[], Hashable] = lambda: None
        self.index_lag_ms = index_lag_ms
        self._changes = 0
        self._writes = 0
        self._tokens: dict[str, tuple[str, int]] = {}

    def get(self, key: Key, *, as_of_ms: int | None = None) -> Item | None:
        _check_key_values(key.pk, key.sk)
        stored = self.partitions.get(key.pk, {}).get(key.sk)
        if stored is None:
            return None
        item = stored.item if as_of_ms is None else stored.as_of(as_of_ms)
        return None if item is None else _handed_out(item, flat=stored.flat and as_of_ms is None)

    def put(self, request: PutRequest) -> Outcome:
        write = self._judged(_prepared(_PUT, request))
        return self._failed(write) if write.failed else Applied(self._make(write, write.old))

    def update(self, request: UpdateRequest) -> Outcome:
        write = self._judged(_prepared(_UPDATE, request))
        return self._failed(write) if write.failed else Applied(self._make(write, write.new))

    def delete(self, request: DeleteRequest) -> Outcome:
        write = self._judged(_prepared(_DELETE, request))
        return self._failed(write) if write.failed else Applied(self._make(write, write.old))

    def transact(self, writes: Sequence[TransactWrite], token: str) -> TransactOutcome:
        """An invalid request is refused whatever its token; a repeated one is answered without looking at the items."""
        if not 1 <= len(token) <= TOKEN_LENGTH_MAX:
            raise ValidationException(Refusal.TRANSACTION_TOKEN, token)
        _check_transaction(writes)
        prepared = [_prepared(verb, cast("Any", request)) for write in writes for verb, request in write.items()]
        if len({one.key for one in prepared}) < len(prepared):
            raise ValidationException(Refusal.TRANSACTION_TWICE)
        payload = repr(writes)
        if self._is_repeated(token, payload):
            return Committed()
        judged = [self._judged(one) for one in prepared]
        if any(write.failed for write in judged):
            return Cancelled(tuple(self._failed(write) if write.failed else None for write in judged))
        self._writes += 1
        for write in judged:
            if write.verb in {_PUT, _UPDATE, _DELETE}:
                self._make(write, None, within=self._writes)
        self._tokens[token] = (payload, self.clock_ms())
        return Committed()

    def expired_keys(self) -> list[Key]:
        """What TTL may delete now. AWS does so within days, in no order."""
        now_s = self.clock_ms() // 1000
        return [
            Key(pk, sk)
            for pk, partition in self.partitions.items()
            for sk, stored in partition.items()
            if stored.item is not None and _has_expired(stored.item, now_s)
        ]

    def expire(self, key: Key) -> None:
        """Deletes one item as TTL does, unless its time was moved meanwhile."""
        stored = self.partitions[key.pk][key.sk]
        if stored.item is not None and _has_expired(stored.item, self.clock_ms() // 1000):
            self._writes += 1
            self._replace(key, stored, None, None, by_ttl=True)

    def items(self) -> list[Item]:
        """Everything, as it is."""
        return [
            stored.item
            for partition in self.partitions.values()
            for stored in partition.values()
            if stored.item is not None
        ]

    def _is_repeated(self, token: str, payload: str) -> bool:
        found = self._tokens.get(token)
        if found is None or self.clock_ms() - found[1] >= TOKEN_LIFE_MS:
            return False
        if found[0] != payload:
            raise IdempotentParameterMismatch(token)
        return True

    def _judged(self, prepared: _Prepared) -> _Write:
        """Whether the condition holds and, if so, what would be written."""
        key, verb, request, condition, update, values = prepared
        stored = self.partitions.get(key.pk, {}).get(key.sk)
        old = None if stored is None else stored.item
        flat = stored is None or stored.flat
        if condition is not None and not condition.test(old or {}, values):
            return _Write(key, verb, old, None, failed=True, flat_old=flat)
        if verb == _PUT:
            item = request["Item"]
            size, flat_new = _check_size(item), is_flat(item)
            return _Write(key, verb, old, copied(item), False, flat, flat_new, size)
        if update is not None:
            new, size = _updated(key, stored, update, values)
            flat_new = flat and is_flat(values)
            return _Write(key, verb, old, new, False, flat, flat_new, size, update.attributes)
        return _Write(key, verb, old, None, failed=False, flat_old=flat)

    def _failed(self, write: _Write) -> ConditionFailed:
        return ConditionFailed(None if write.old is None else _handed_out(write.old, flat=write.flat_old))

    def _make(self, write: _Write, answer: Item | None, within: int | None = None) -> Item | None:
        """Writes, and hands out the image that the caller asked for. `within`: the number of its transaction."""
        if within is None:
            self._writes += 1
        if write.old is None and write.new is None:
            return None
        stored = self.partitions.setdefault(write.key.pk, {}).setdefault(write.key.sk, Stored())
        stored.flat = write.flat_new
        stored.bytes_most = write.bytes_most
        self._replace(write.key, stored, write.new, write.touched)
        return None if answer is None else _handed_out(answer, flat=write.flat_old and write.flat_new)

    def _replace(
        self, key: Key, stored: Stored, new: Item | None, touched: frozenset[str] | None, *, by_ttl: bool = False
    ) -> None:
        old = stored.item
        now_ms = self.clock_ms()
        stored.item = new
        stored.versions.append((now_ms, new))
        if len(stored.versions) > VERSIONS_MAX:
            del stored.versions[0]
        if old == new and same(old, new):
            return
        self._changes += 1
        self.stream.append(StreamRecord(self._changes, key, old, new, now_ms, by_ttl, self._writes, self.cause()))
        for index in self.indexes.values():
            if touched is None or index.projects_all or not index.keys.isdisjoint(touched):
                due_ms = now_ms + self.index_lag_ms(index.name)
                index.follow(key, old, new, due_ms=due_ms, sequence=self._changes)


def check_placeholders(request: Mapping[str, Any], used: Placeholders | None) -> None:
    """Every name and value must be defined and used; then what the values themselves make invalid."""
    names = request.get("ExpressionAttributeNames")
    values = request.get("ExpressionAttributeValues")
    used_names, used_values, checks = used or _NO_PLACEHOLDERS
    if (names or {}).keys() != used_names or (values or {}).keys() != used_values:
        raise _placeholder_refusal(names or {}, values or {}, used_names, used_values)
    if used is None and (names is not None or values is not None):
        raise ValidationException(Refusal.PLACEHOLDERS_ALONE)
    if values is None:
        return
    for value in values.values():
        check_value(value)
    for check in checks:
        check(values)


def _placeholder_refusal(
    names: Mapping[str, str], values: Mapping[str, Value], used_names: frozenset[str], used_values: frozenset[str]
) -> ValidationException:
    for placeholder, sign in [*((name, "#") for name in names), *((value, ":") for value in values)]:
        if not placeholder.startswith(sign) or not placeholder[1:].replace("_", "a").isalnum():
            return ValidationException(Refusal.BAD_PLACEHOLDER, placeholder)
    if used_values - values.keys():
        return ValidationException(Refusal.UNDEFINED_VALUE, str(sorted(used_values - values.keys())))
    if values.keys() - used_values:
        return ValidationException(Refusal.UNUSED_VALUE, str(sorted(values.keys() - used_values)))
    return ValidationException(Refusal.UNUSED_NAME, str(sorted(names.keys() - used_names)))


def _prepared(verb: str, request: Mapping[str, Any]) -> _Prepared:
    """Refuses what is invalid whatever the item is."""
    names = tuple(request.get("ExpressionAttributeNames", {}).items())
    update_text = request["UpdateExpression"] if verb == _UPDATE else None
    condition, update, used = compile_write(request.get("ConditionExpression"), update_text, names)
    check_placeholders(request, used)
    key = _check_item(request["Item"]) if verb == _PUT else _check_key(request["Key"])
    if update is not None and not update.attributes.isdisjoint(_ALL_KEY_NAMES):
        _check_update_paths(update)
    return _Prepared(key, verb, request, condition, update, request.get("ExpressionAttributeValues", {}))


def _check_transaction(writes: Sequence[TransactWrite]) -> None:
    if not writes:
        raise ValidationException(Refusal.TRANSACTION_EMPTY)
    if len(writes) > TRANSACTION_ITEMS_MAX:
        raise ValidationException(Refusal.TRANSACTION_ITEMS, str(len(writes)))
    if any(len(write) != 1 for write in writes):
        raise ValidationException(Refusal.SYNTAX, "an element of a transaction is exactly one write")
    puts = [write["Put"]["Item"] for write in writes if "Put" in write]
    if sum(map(item_bytes_most, puts)) > TRANSACTION_BYTES_MAX and sum(map(item_bytes, puts)) > TRANSACTION_BYTES_MAX:
        raise ValidationException(Refusal.TRANSACTION_SIZE)


def _check_key(attributes: Mapping[str, Value]) -> Key:
    if attributes.keys() != _KEY_NAMES:
        raise ValidationException(Refusal.KEY_SHAPE, str(sorted(attributes)))
    return _check_key_values(attributes[schema.PARTITION_KEY], attributes[schema.SORT_KEY])


def _check_key_values(pk: Value, sk: Value) -> Key:
    if not isinstance(pk, str) or not isinstance(sk, str):
        raise ValidationException(Refusal.KEY_TYPE)
    if not pk or not sk:
        raise ValidationException(Refusal.KEY_EMPTY)
    if text_bytes(pk) > PARTITION_KEY_BYTES_MAX or text_bytes(sk) > SORT_KEY_BYTES_MAX:
        raise ValidationException(Refusal.KEY_SIZE)
    return Key(pk, sk)


def _check_item(item: Item) -> Key:
    check_value(item, depth=-1)
    if schema.PARTITION_KEY not in item or schema.SORT_KEY not in item:
        raise ValidationException(Refusal.KEY_SHAPE, str(sorted(item)))
    key = _check_key_values(item[schema.PARTITION_KEY], item[schema.SORT_KEY])
    check_index_keys(item, Refusal.INDEX_KEY_TYPE)
    return key


def _check_update_paths(update: Update) -> None:
    for path in update.paths:
        if path.attribute in _KEY_NAMES:
            raise ValidationException(Refusal.KEY_UPDATED, path.attribute)
        if len(path.parts) > 1 and path.attribute in INDEX_KEYS:
            raise ValidationException(Refusal.INDEX_KEY_PATH, path.attribute)


def _check_size(item: Item) -> int:
    """What it is at most. Measured only where that is too much."""
    most = item_bytes_most(item)
    if most <= ITEM_BYTES_MAX:
        return most
    size = item_bytes(item)
    if size > ITEM_BYTES_MAX:
        raise ValidationException(Refusal.ITEM_SIZE, f"{size} bytes")
    return size


def _updated(key: Key, stored: Stored | None, update: Update, values: Mapping[str, Value]) -> tuple[Item, int]:
    if stored is None or stored.item is None:
        old: Item = {}
        new: Item = {**key.attributes}
        bytes_most = 0
    else:
        old = stored.item
        new = dict(old) if stored.flat else copied(old)
        bytes_most = stored.bytes_most
    for write in update.writes:
        write(old, new, values)
    if not update.attributes.isdisjoint(INDEX_KEYS):
        check_index_keys(new, Refusal.UPDATED_INDEX_KEY_TYPE)
    bytes_most += _GROWTH_BYTES + item_bytes_most(values)
    return new, bytes_most if bytes_most <= ITEM_BYTES_MAX else _check_size(new)


def _has_expired(item: Item, now_s: int) -> bool:
    expires_at_s = item.get(schema.TTL_ATTRIBUTE)
    return type(expires_at_s) is int and now_s - TTL_IGNORED_AFTER_S < expires_at_s < now_s


def _handed_out(item: Item, *, flat: bool) -> Item:
    return dict(item) if flat else copied(item)
