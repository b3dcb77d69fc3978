"""What must be true of every answer, whatever was asked."""

import json
import re
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final

from sluice.edge.problems import CONTENT_TYPE, TYPE_PREFIX
from tests.hostile.document import Place, documented_kinds, place_of
from tests.hostile.furniture import SECRETS
from tests.hostile.gateway import Answer

_REQUIRED: Final = {"type": str, "title": str, "status": int, "detail": str, "request_id": str}
_MEMBERS: Final = frozenset(
    {
        *_REQUIRED,
        *("field", "errors", "entity", "resource", "limit", "requested", "burst"),
        *("retry_after_ms", "admit_at", "violations", "remedies", "resets_at", "labels", "dimensions"),
    }
)
# Parts of keys and of Python's own words: none of them can be part of an id.
_INTERNALS: Final = re.compile(
    r"Traceback|File \\?\"|botocore|pydantic|dynamodb|ConditionalCheck|<class|0x[0-9a-f]{8}"
    r"|(ENTITY|BUCKET|RESOURCE|SYSTEM|LEASE|AUDIT|JOB|CONFIG|IDEMPOTENCY)#|#(META|STATE|CONFIG|ANSWER|VERSION)\b"
    r"|(CLIENT|TOKEN)#|#(CREDENTIALS|REVOKED|ORG|APP)\b|\$client:|\$login|hmac-sha256"
    r"|(PRICE|EVENT|COST|TOTAL|STICKY|DIRTY|BUDGET|HOLDS)#|#(LABEL|PROFILE|DAY|LEDGER|ALERT)#"
    r"|constrained-|function-(after|before|wrap|plain)"
)
_ATTRIBUTE: Final = re.compile(r"PK|SK|GSI\d[PS]K|lh|gen|rev|due|shard_count|[bl]_.+_(tk|cp|bx|ra|rp|tc)")
_NOT_FOUND: Final = "not-found"
_BUDGET_EXCEEDED: Final = "budget-exceeded"
# A refusal by one member of a chain gives back what the others had given already; that by a budget is told, once.
_MAY_CHANGE: Final = frozenset({"limit-exceeded", "contended", _BUDGET_EXCEEDED})
# A login is counted before it is judged. A refresh token that comes again ends its login. A ledger is there before the
# event that would be its first.
_MAY_CHANGE_AT: Final = frozenset(
    {
        *(("/v1/auth/token", "unauthorized"), ("/v1/auth/token", "suspended"), ("/v1/auth/refresh", "unauthorized")),
        ("/v1/usage", "request-id-conflict"),
    }
)


def complaints(method: str, path: str, answer: Answer, *, changed: bool) -> Iterator[str]:
    """What is wrong with an answer. `path`: as the function was given it. `changed`: the table has."""
    if answer.status >= 500:
        yield f"a request caused {answer.status}"
    yield from _leaks(answer)
    if answer.status >= 400:
        yield from _of_problem(method, place_of(path), answer)
    if changed and (method == "GET" or path == "/v1/explain"):
        yield "a question changed the table"
    if changed and answer.status >= 400 and not _may_change(path, answer):
        yield "a refused request changed the table"


def _may_change(path: str, answer: Answer) -> bool:
    kind = answer.json().get("type", "").removeprefix(TYPE_PREFIX)
    return kind in _MAY_CHANGE or (path, kind) in _MAY_CHANGE_AT


def _leaks(answer: Answer) -> Iterator[str]:
    text = answer.body.decode() + " ".join(answer.headers.values())
    for secret in SECRETS:
        if secret in text:
            yield f"what belongs to another tenant is told: {secret}"
    found = _INTERNALS.search(text)
    if found is not None:
        yield f"internals are told: {found[0]}"
    if answer.body:
        attributes = {name for name in _names(json.loads(answer.body)) if _ATTRIBUTE.fullmatch(name)}
        if attributes:
            yield f"attributes of the table are told: {sorted(attributes)}"


def _names(value: Any) -> Iterator[str]:
    """The names of all members. Those of metadata and tags are the client's."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield name
            if name not in {"metadata", "tags"}:
                yield from _names(part)
    elif isinstance(value, list):
        for part in value:
            yield from _names(part)


def _of_problem(method: str, place: Place | None, answer: Answer) -> Iterator[str]:
    if answer.content_type != CONTENT_TYPE:
        yield f"a problem has the content type {answer.content_type}"
        return
    problem: Mapping[str, Any] = json.loads(answer.body)
    wrong = [name for name, kind in _REQUIRED.items() if type(problem.get(name)) is not kind or problem[name] == ""]
    if wrong:
        yield f"a problem lacks {wrong}"
        return
    if problem.keys() - _MEMBERS:
        yield f"a problem has unknown members: {sorted(problem.keys() - _MEMBERS)}"
    if problem["status"] != answer.status:
        yield f"a problem with status {answer.status} says {problem['status']}"
    kind = problem["type"].removeprefix(TYPE_PREFIX)
    if kind == problem["type"]:
        yield f"a problem has the type {kind}"
    if answer.status == HTTPStatus.BAD_REQUEST and not problem.get("field"):
        yield "a bad request does not name the field"
    if answer.status == HTTPStatus.TOO_MANY_REQUESTS:
        yield from _of_budget(problem, answer) if kind == _BUDGET_EXCEEDED else _of_refusal(problem, answer)
    yield from _of_kind(method, place, kind, answer)


def _of_refusal(problem: Mapping[str, Any], answer: Answer) -> Iterator[str]:
    wait_ms = problem.get("retry_after_ms")
    if not isinstance(wait_ms, int) or wait_ms < 1:
        yield f"a refusal says to try again after {wait_ms} ms"
    elif answer.header("retry-after-ms") != str(wait_ms) or answer.header("retry-after") != str(-(-wait_ms // 1000)):
        yield "the headers of a refusal disagree with its body"


def _of_budget(problem: Mapping[str, Any], answer: Answer) -> Iterator[str]:
    """Who waits for seconds is only refused again."""
    if not problem.get("resets_at") or not problem.get("violations"):
        yield "a refusal by a budget says neither of what nor until when"
    if answer.header("retry-after") or answer.header("x-should-retry") != "false":
        yield "a refusal by a budget asks to try again"


def _of_kind(method: str, place: Place | None, kind: str, answer: Answer) -> Iterator[str]:
    """Whether this operation may answer so. Where nothing is, or not by this method, the answer is fixed."""
    if place is None or (not place.valid and kind == _NOT_FOUND):
        if (answer.status, kind) != (HTTPStatus.NOT_FOUND, _NOT_FOUND):
            yield f"at a path where nothing is: {answer.status} {kind}"
    elif method not in place.methods:
        if (answer.status, kind) != (HTTPStatus.METHOD_NOT_ALLOWED, "method-not-allowed"):
            yield f"to a method that the path does not take: {answer.status} {kind}"
        if frozenset(answer.header("allow").split(", ")) != place.methods:
            yield f"allowed are {sorted(place.methods)}, told is {answer.header('allow')}"
    elif kind not in documented_kinds(place.template, method, answer.status):
        yield f"{answer.status} {kind} is not documented for {method} {place.template}"
