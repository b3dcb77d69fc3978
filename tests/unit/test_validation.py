"""What pydantic has against a text, in words."""

from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, ValidationError

from data_plane.lease_routes import IDEMPOTENCY_KEY_PATTERN
from data_plane.usage_models import REQUEST_ID_PATTERN
from sluice.edge.models import ID_PATTERN, MODEL_ID_PATTERN, REGION_PATTERN
from sluice.edge.times import DAY_PATTERN, TIME_PATTERN
from sluice.edge.validation import validation_problem


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        (ID_PATTERN, "is not an id"),
        (MODEL_ID_PATTERN, "no space"),
        (REGION_PATTERN, "eu-central-1"),
        (DAY_PATTERN, "yyyy-mm-dd"),
        (TIME_PATTERN, "2026-11-18T10:20:00Z"),
        (REQUEST_ID_PATTERN, "printable"),
        (IDEMPOTENCY_KEY_PATTERN, "printable"),
        ("^x$", "String should match pattern '^x$'"),
    ],
)
def test_a_pattern_is_told_in_words(pattern: str, says: str) -> None:
    class Body(BaseModel):
        given: Annotated[str, Field(pattern=pattern)]

    with pytest.raises(ValidationError) as raised:
        Body(given="\n")
    errors: list[Any] = [{**error, "loc": ("body", *error["loc"])} for error in raised.value.errors()]
    problem = validation_problem(errors)
    assert problem.members["field"] == "given"
    assert problem.detail is not None
    assert problem.detail.startswith("given: ")
    assert says in problem.detail
