"""Syntax trees of expressions. Names are resolved, values are not: one tree serves every request with that text."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Path:
    """The names from the attribute down; a number is the position in a list."""

    parts: tuple[str | int, ...]

    @property
    def attribute(self) -> str:
        return str(self.parts[0])


@dataclass(frozen=True, slots=True)
class Given:
    """A value of the request, such as `:now`."""

    name: str


@dataclass(frozen=True, slots=True)
class Size:
    operand: "Path | Given"


Operand = Path | Given | Size


@dataclass(frozen=True, slots=True)
class Compare:
    sign: str
    left: Operand
    right: Operand


@dataclass(frozen=True, slots=True)
class Between:
    operand: Operand
    low: Operand
    high: Operand


@dataclass(frozen=True, slots=True)
class In:
    operand: Operand
    choices: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Function:
    name: str
    operands: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Not:
    inner: "Node"


@dataclass(frozen=True, slots=True)
class Both:
    """AND and OR: `sign` says which."""

    sign: str
    parts: "tuple[Node, ...]"


Node = Compare | Between | In | Function | Not | Both


@dataclass(frozen=True, slots=True)
class IfNotExists:
    path: Path
    fallback: "Term"


@dataclass(frozen=True, slots=True)
class Sum:
    left: "Term"
    sign: str
    right: "Term"


Term = Path | Given | IfNotExists | Sum


@dataclass(frozen=True, slots=True)
class Action:
    """`source`: what is set or added; None removes."""

    verb: str
    path: Path
    source: Term | None


@dataclass(frozen=True, slots=True)
class Parsed:
    """`names` and `values`: the placeholders that the text uses."""

    names: frozenset[str]
    values: frozenset[str]
    paths: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class ParsedCondition(Parsed):
    root: Node


@dataclass(frozen=True, slots=True)
class ParsedUpdate(Parsed):
    actions: tuple[Action, ...]
