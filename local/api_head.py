"""What holds for all routes: the head of docs/api.md. Figures are those of the code."""

from typing import Final

from sluice.core.limits import LIMIT_NAME_PATTERN
from sluice.edge.models import ID_PATTERN
from sluice.edge.requests import BODY_BYTES_MAX, JSON_MEDIA_TYPE, LARGE_BODIES

_LARGE: Final = ", ".join(f"{bytes_max:,} in `POST {path}`" for path, bytes_max in LARGE_BODIES.items())

HEAD: Final = f"""# API reference

Generated from the routes by `make docs`; the whole document is at `/v1/openapi.json`. A body is a JSON object, sent as
`{JSON_MEDIA_TYPE}`, of at most {BODY_BYTES_MAX:,} bytes ({_LARGE}). What is
larger is answered 413 `payload-too-large`. A field that is not named here is refused in a body.

"Who" names the roles that may call a route. An app's own subtree is its entity and those below it: whatever else it
asks for is answered as if it were not there.

An id is `{ID_PATTERN[1:-1]}`, a limit name `{LIMIT_NAME_PATTERN}`, a model id 1 to 256
printable ASCII characters without spaces, a day `yyyy-mm-dd` in the org's time zone, a time RFC 3339 with its zone;
what is finer than a millisecond is cut off. Money is in whole millionths of a US dollar.

Orgs, apps, entities, labels, inference profiles, limits and budgets that were put answer with their version as `ETag`;
send it back as `If-Match`. A 201 of `POST /v1/acquire` has `RateLimit-Policy` and `RateLimit` where buckets took part:
not with `reserve` alone, nor where it was let through unchecked.

## Problems

Errors are problem documents (RFC 9457, `application/problem+json`): `type` is `urn:sluice:problem:` and the kind, with
`title`, `status`, `detail` and `request_id`; `field` where one is to blame. Each route names its kinds. Any path may
also answer 404 `not-found`, 405 `method-not-allowed` with `Allow`, or 500 `internal`; beyond the stage's rate API
Gateway itself answers 429 in its own format. An event of a batch that is refused has its problem document in its
result. These kinds have more:

| kind | more members | headers |
|---|---|---|
| `invalid-request` | `errors`, where several fields are wrong: `field` and `detail` of each |  |
| `limit-exceeded` | `retry_after_ms`; `admit_at`: when it passes if nobody else takes anything; `violations`: \
`entity`, `resource`, `limit`, `requested`, `available`, `retry_after_ms`, `source` of each limit that is short; \
`remedies`: `wait` with milliseconds as `value`, `smaller_amount` with a `limit` and what of it is there as `value` | \
`Retry-After` (seconds), `retry-after-ms`, `RateLimit-Policy`, `RateLimit` |
| `contended`, `too-many-requests` | `retry_after_ms` | `Retry-After`, `retry-after-ms` |
| `budget-exceeded` | `resets_at`; `violations`: `entity`, `period` (day or month), `dimension` (cost, tokens or \
executions), `limit`, `used`, which contains what is held, `held`, `requested`, `unit` of each hard limit without \
room; `remedies`: `max_output_tokens` or `label` with a `value` for which there is room | `x-should-retry` is `false`: \
waiting for seconds does not help |
| `never-admissible` | of a limit: `entity`, `resource`, `limit`, `requested`, `burst`; of a budget: `violations` and \
`remedies` as of `budget-exceeded` |  |
| `reserve-required` | `dimensions`: those of `cost` and `tokens` that hard budgets limit and that have no amount |  |
| `no-limits` | `entity`, `resource` |  |
| `all-quotas-exceeded` | `resets_at`, `retry_after_ms`; `labels`: `label`, `spent_usd_micros`, `quota_usd_micros` of \
each | `Retry-After`, `retry-after-ms` |
| `unavailable` |  | `Retry-After` |
| `unauthorized` |  | `WWW-Authenticate` |
"""
