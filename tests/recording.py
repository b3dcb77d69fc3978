"""A store that writes down every call and lets a test act, or fail, at the moment of one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sluice.repository.keys import Key
from sluice.repository.requests import (
    DeleteRequest,
    PutRequest,
    QueryRequest,
    ScanRequest,
    TransactWrite,
    UpdateRequest,
)
from sluice.repository.retries import Rebuild
from sluice.repository.store import Outcome, Page, Store, TransactOutcome
from sluice.repository.wire import Item

T = TypeVar("T")


@dataclass
class RecordingStore:
    """`before` runs ahead of each call, `after` behind it; both may raise in its place."""

    inner: Store
    calls: list[str] = field(default_factory=list)
    repeatable: list[tuple[str, bool]] = field(default_factory=list)
    before: Callable[[str, Any], None] | None = None
    after: Callable[[str, Any], None] | None = None

    def taken_calls(self) -> list[str]:
        """The calls since the last time this was asked."""
        taken, self.calls = self.calls, []
        return taken

    def get(self, key: Key, *, consistent: bool = False) -> Item | None:
        return self._call(
            _read_name("get", consistent=consistent), key, lambda: self.inner.get(key, consistent=consistent)
        )

    def batch_get(self, keys: Sequence[Key], *, consistent: bool = False) -> list[Item]:
        return self._call(
            _read_name("batch_get", consistent=consistent),
            keys,
            lambda: self.inner.batch_get(keys, consistent=consistent),
        )

    def put(self, request: PutRequest, *, repeatable: bool) -> Outcome:
        self.repeatable.append(("put", repeatable))
        return self._call("put", request, lambda: self.inner.put(request, repeatable=repeatable))

    def update(self, request: UpdateRequest, *, repeatable: bool) -> Outcome:
        self.repeatable.append(("update", repeatable))
        return self._call("update", request, lambda: self.inner.update(request, repeatable=repeatable))

    def delete(self, request: DeleteRequest) -> Outcome:
        return self._call("delete", request, lambda: self.inner.delete(request))

    def transact(
        self, writes: Sequence[TransactWrite], token: str, *, rebuild: Rebuild | None = None
    ) -> TransactOutcome:
        # Named only where it is given: tests play stores that know of none.
        more = {} if rebuild is None else {"rebuild": rebuild}
        return self._call("transact", writes, lambda: self.inner.transact(writes, token, **more))

    def query(self, request: QueryRequest) -> Page:
        return self._call("query", request, lambda: self.inner.query(request))

    def scan(self, request: ScanRequest) -> Page:
        return self._call("scan", request, lambda: self.inner.scan(request))

    def _call(self, verb: str, request: Any, send: Callable[[], T]) -> T:
        self.calls.append(verb)
        if self.before is not None:
            self.before(verb, request)
        answer = send()
        if self.after is not None:
            self.after(verb, request)
        return answer


def _read_name(verb: str, *, consistent: bool) -> str:
    return f"consistent {verb}" if consistent else verb
