"""Requests that schemathesis makes from the document."""

from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import cache
from typing import Any, Final

import hypothesis
import schemathesis
from hypothesis import HealthCheck, Phase
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.generation.feedback import NO_FEEDBACK
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.schemas import OpenApiSchema

from tests.hostile.document import closed_document, likely_document
from tests.hostile.fuzz import Case

Operation = APIOperation[Any, Any, Any, Any]

# Schemathesis does not know that a body may be too long, or a version another, before anything else is wrong; nor
# that who calls is looked at first; and a batch of events refuses each of them in its own result.
_REFUSALS: Final = ["207", "400", "401", "403", "404", "405", "409", "410", "412", "413", "415", "422"]


class Variety(StrEnum):
    VALID = "as documented"
    LIKELY = "about what exists"
    INVALID = "not as documented"


def operation(variety: Variety, method: str, path: str) -> Operation:
    found: Operation = schema_of(variety)[path][method]
    return found


@cache
def schema_of(variety: Variety) -> OpenApiSchema:
    document = likely_document() if variety is Variety.LIKELY else closed_document()
    schema = schemathesis.openapi.from_dict(document)
    schema.config.output.sanitization.update(enabled=False)
    schema.config.checks.negative_data_rejection.expected_statuses = _REFUSALS
    if variety is not Variety.INVALID:
        schema.hooks.register_hook_with_name(_with_whole_numbers, "map_body")
    return schema


def settings(examples: int, steps: int = 1) -> hypothesis.settings:
    """Nothing is kept or made smaller: a failure is noted and the next request sent, on what the last one left."""
    return hypothesis.settings(
        max_examples=examples,
        stateful_step_count=steps,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def generate(variety: Variety, method: str, path: str, *, count: int, seed: int, run: Callable[[Case], object]) -> None:
    """So many different ones, or all there are."""
    mode = GenerationMode.NEGATIVE if variety is Variety.INVALID else GenerationMode.POSITIVE
    cases = operation(variety, method, path).as_strategy(mode, feedback=NO_FEEDBACK)

    @hypothesis.seed(seed)
    @settings(count)
    @hypothesis.given(cases)
    def each(case: Case) -> None:
        run(case)

    try:
        each()
    except Unsatisfiable:
        # Where nothing is sent, nothing can be wrong with it.
        assert variety is Variety.INVALID


def boundaries(method: str, path: str) -> Iterator[Case]:
    """One for every bound, type and member of an operation, on both sides of it, and each method it does not take."""
    schema = schema_of(Variety.INVALID)
    # It leaves out what another operation of the path was asked: what a test sends would depend on those before it.
    schema.coverage_unexpected_methods_seen.clear()
    yield from schema.iter_coverage_cases(
        schema[path][method], generation_modes=list(GenerationMode), generation_config=schema.config.generation
    )


def _with_whole_numbers(_context: object, body: Any) -> Any:
    """JSON Schema takes 1.0 for an integer. The product does not, and would refuse most of what is generated."""
    if isinstance(body, float) and body.is_integer():
        return int(body)
    if isinstance(body, dict):
        return {name: _with_whole_numbers(_context, value) for name, value in body.items()}
    if isinstance(body, list):
        return [_with_whole_numbers(_context, value) for value in body]
    return body
