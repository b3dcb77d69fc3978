"""Sends generated requests and judges the answers. A failure says what was sent and how to see it again."""

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import schemathesis
from requests import PreparedRequest
from schemathesis import CheckFunction, GenerationMode, Response
from schemathesis.checks import not_a_server_error
from schemathesis.config import SanitizationConfig
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.transport.prepare import prepare_request

from tests.hostile.checks import complaints
from tests.hostile.document import place_of
from tests.hostile.gateway import Answer, decoded_path

SEED: Final = int(os.environ.get("SLUICE_FUZZ_SEED", "20270115"))
REQUESTS: Final = int(os.environ.get("SLUICE_FUZZ_REQUESTS", "10000"))

Case = schemathesis.Case[Any]

_AS_IT_IS: Final = SanitizationConfig(enabled=False)
_CHECKS: Final[tuple[CheckFunction, ...]] = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
)
_FAILURES_TOLD: Final = 3
_CHARACTERS_TOLD: Final = 4000
# What the document can not say. Any other refusal of what it allows is a fault of the document.
_BEYOND_THE_DOCUMENT: Final = re.compile(
    r"cursor: is not a cursor of this list"
    r"|lease: is not a valid lease, or one of another entity"
    r"|parent: (there is no such entity|would make .*|.* levels? .*)"
    r"|\w+\.\w+: is not a limit of this lease"
    r"|\w+\.\w+: must not (take|make|bring) .*"
    r"|consume\.\w+: no such limit is defined for this entity and resource"
    r"|(limits\.)?\w+\.burst: must (not be below the capacity|be refilled within 10 years)"
    r"|limits(\.wcu)?: .*reserved.*"
    r"|metadata: must have at most 4096 bytes as JSON"
    r"|legacy_namespace: is in use: .*"
    r"|counter_shards: only grows, .*"
    r"|model_ordering: names a label twice"
    r"|quotas(\.\S+)?: (every label of model_ordering has a quota|at most .* labels have a quota)"
    r"|timezone: is not the IANA name of a time zone"
    r"|(from|to|until|occurred_at): (is not a time|must not be before 1970)"
    r"|(from|to|day|from_day): is not a day, as yyyy-mm-dd"
    r"|day: must be one of the last 90 days: .*"
    r"|from: totals are kept for .* days"
    r"|until: must (be in the future|not be after the next local midnight, .*)"
    r"|occurred_at: is more than (60 seconds ahead of our time|35 days ago)"
    r"|label: (either label or|exactly one of label and) model_id .*"
    r"|region: (is needed: this label stands for an inference profile|the inference profile of this label has .*)"
    r"|inference_profile_arn: (is not of the form|has a wrong|is not the ARN of) .*"
    r"|standard: names neither a price of input nor of output"
    r"|long_from_tokens: neither long_standard nor long_batch says what a long call costs"
    r"|(long_standard|long_batch): .*long.*"
    r"|consume: names at least one limit, unless reserve is given"
    r"|reserve(\.\w+)?: .*"
    r"|alert_percents: must name each only once"
    r"|from: must (not be after to, nor in the future|be at most .* before to .*)"
)


class Target(Protocol):
    def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> Answer: ...


@dataclass
class Fuzz:
    """`changes`: a number that grows with every change of the table, if that can be seen.

    `exact`: the requests are made from the whole document; then what it allows or not must be so.
    """

    target: Target
    base_url: str
    changes: Callable[[], int] = lambda: 0
    exact: bool = True
    statuses: Counter[int] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    @property
    def sent(self) -> int:
        return self.statuses.total()

    def run(self, case: Case) -> Response:
        """Sends it and notes what is wrong with the answer."""
        request = prepare_request(case, {}, config=_AS_IT_IS, base_url=self.base_url)
        method, url = str(request.method), str(request.url)
        before = self.changes()
        headers = {str(name): str(value) for name, value in request.headers.items()}
        answer = self.target.send(method, url, headers, _content(request))
        self.statuses[answer.status] += 1
        response = _response(request, answer)
        path = decoded_path(urlsplit(url).path.removeprefix(urlsplit(self.base_url).path))
        wrong = [
            *complaints(method, path, answer, changed=self.changes() != before),
            *self._of_document(case, path, response),
        ]
        if wrong:
            asked = case.as_curl_command(base_url=self.base_url)[:_CHARACTERS_TOLD]
            answered = f"{answer.status} {dict(answer.headers)} {answer.body.decode()}"
            self.failures.append("\n".join([*wrong, f"asked:    {asked}", f"answered: {answered}"]))
        return response

    def conclude(self, test: str) -> None:
        """Fails if anything was wrong. `test`: how pytest calls it."""
        if self.failures:
            again = f"SLUICE_FUZZ_SEED={SEED} SLUICE_FUZZ_REQUESTS={REQUESTS} python -m pytest '{test}'"
            told = [*self.failures[:_FAILURES_TOLD], f"{len(self.failures)} of {self.sent} answers; again: {again}"]
            raise AssertionError("\n\n".join(told))

    def _of_document(self, case: Case, path: str, response: Response) -> list[str]:
        """By schemathesis, where the request really is one for this operation: a generated id may have a slash."""
        place = place_of(path)
        if place is None or not place.valid or place.template != case.path or case.method not in place.methods:
            return []
        mode = None if case.meta is None or not self.exact else case.meta.generation.mode
        checks = [*_CHECKS, negative_data_rejection] if mode is GenerationMode.NEGATIVE else list(_CHECKS)
        try:
            case.validate_response(response, checks=checks)
        except FailureGroup as group:
            return [f"{failure.title}: {failure.message}" for failure in group.exceptions]
        if mode is GenerationMode.POSITIVE and response.status_code == 400:
            detail = response.json()["detail"]
            if not _BEYOND_THE_DOCUMENT.fullmatch(detail):
                return [f"the document allows it, and yet: {detail}"]
        return []


def _content(request: PreparedRequest) -> bytes:
    body: Any = request.body
    content: bytes = body.encode() if isinstance(body, str) else body or b""
    return content


def _response(request: PreparedRequest, answer: Answer) -> Response:
    headers = {name: [value] for name, value in answer.headers.items()}
    return Response(int(answer.status), headers, answer.body, request, elapsed=0.0, verify=False)
