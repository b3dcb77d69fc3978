"""Operations one after the other, along the links of the document."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import hypothesis
from schemathesis import Response

from tests.hostile.fuzz import Case, Fuzz
from tests.hostile.generated import Variety, schema_of, settings

Reached = Counter[tuple[str, int]]
SCENARIOS = 25
STEPS = 20


class Scenario:
    """What surrounds one sequence. It may say what the next answers come from."""

    def begin(self) -> None: ...

    def after(self, _case: Case, _response: Response) -> None: ...

    def end(self) -> None: ...


def follow_links(fuzz: Fuzz, new_scenario: Callable[[], Scenario], *, count: int, seed: int) -> Reached:
    """Sequences with so many requests in all. What came of each operation, and how often."""
    reached: Reached = Counter()
    machine = _machine(fuzz, new_scenario, reached)
    goal = fuzz.sent + count
    while fuzz.sent < goal:
        # A new seed each time: the same one would say the same.
        hypothesis.seed(seed)(machine).run(settings=settings(max(1, min(SCENARIOS, count // STEPS)), STEPS))
        seed += 1
    return reached


def _machine(fuzz: Fuzz, new_scenario: Callable[[], Scenario], reached: Reached) -> Any:
    base: Any = schema_of(Variety.LIKELY).as_state_machine()

    class Machine(base):  # type: ignore[misc]
        def setup(self) -> None:
            self.scenario = new_scenario()
            self.scenario.begin()

        def call(self, case: Case, **_arguments: object) -> Response:
            response = fuzz.run(case)
            reached[case.operation.label, response.status_code] += 1
            self.scenario.after(case, response)
            return response

        def validate_response(self, response: Response, case: Case, *_more: object, **_arguments: object) -> None:
            """Done already."""

        def teardown(self) -> None:
            super().teardown()
            self.scenario.end()

    return Machine
