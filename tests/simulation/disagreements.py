"""Where an engine takes what AWS refuses. The simulated table sides with AWS, so it is the only one to catch these.

Each entry is tested: an engine that learns to refuse fails its test until its entry is removed.
"""

from typing import Final

from tests.engines import MINISTACK, REFERENCE
from tests.simulation.hostile import HOSTILE
from tests.simulation.refusals import Refusal

ACCEPTED: Final[dict[str, frozenset[str]]] = {
    MINISTACK: frozenset(
        {
            "syntax: a comma at the end",
            "syntax: nothing to set",
            "syntax: ADD of a path",
            "syntax: three terms",
            "syntax: another sign for not equal",
            "more than 300 operators: many operators",
            "more than 100 operands of IN: many choices",
            "arithmetic in a condition: a sum",
            "arithmetic in a condition: a difference",
            "arithmetic in a condition: a name with a dash",
            "reserved word: name, where the condition fails",
            "unknown function: foo",
            "unknown function: capitals",
            "first operand used again: an attribute equal to itself",
            "first operand used again: an attribute between itself",
            "malformed name or value: a name without its sign",
            "operand of a wrong type: a truth value in order",
            "operand of a wrong type: nothing in order",
            "operand of a wrong type: a text added",
            "operand of a wrong type: a number as prefix of nothing",
            "BETWEEN bounds of different types: BETWEEN",
            "section used twice: SET",
            "paths overlap: SET and ADD",
            "paths overlap: two names of one attribute",
            "path invalid for update: ADD into nothing",
            "path invalid for update: REMOVE from nothing",
            "result of more than 38 digits: a sum",
            "empty attribute name: in a map",
            "index key too long: GSI1SK",
            "operator not allowed in a key condition: OR",
            "filter on a key attribute: SK",
            "filter on an attribute that the index does not project: n in GSI3",
        }
    ),
    REFERENCE: frozenset(
        {
            "index key updated to a wrong type: GSI1PK",
            "one item twice in a transaction: where a condition fails",
        }
    ),
}

WRONG: Final[dict[str, frozenset[str]]] = {
    MINISTACK: frozenset(
        {
            "nowhere = elsewhere",
            "nowhere <> elsewhere",
            "nowhere IN (:one, elsewhere)",
            "size(n) >= :zero",
            "begins_with(n, :text)",
            "contains(:text, s)",
        }
    ),
    REFERENCE: frozenset(),
}
"""Valid conditions that an engine judges otherwise than AWS, or refuses."""


def lax_kinds(engine: str) -> frozenset[Refusal]:
    """Refusals that this engine does not always share."""
    return frozenset(hostile.kind for hostile in HOSTILE if hostile.text in ACCEPTED[engine])
