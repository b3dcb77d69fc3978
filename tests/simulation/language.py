"""The expression language: its tokens and its parser.

condition  := disjunct (OR disjunct)*          update := (SET set, ... | ADD add, ... | REMOVE path, ...)+
disjunct   := negation (AND negation)*         set    := path = sum
negation   := NOT negation | primary           sum    := term [(+ | -) term]
primary    := ( condition ) | function | operand (comparator operand | BETWEEN ... | IN (...))
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from tests.simulation.refusals import NotModelled, Refusal, ValidationException
from tests.simulation.reserved_words import RESERVED_WORDS
from tests.simulation.syntax import (
    Action,
    Between,
    Both,
    Compare,
    Function,
    Given,
    IfNotExists,
    In,
    Node,
    Not,
    Operand,
    ParsedCondition,
    ParsedUpdate,
    Path,
    Size,
    Sum,
    Term,
)

EXPRESSION_BYTES_MAX: Final = 4096
OPERATORS_MAX: Final = 300
IN_OPERANDS_MAX: Final = 100

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<word>[A-Za-z][A-Za-z0-9_]*)|(?P<name>#[A-Za-z0-9_]+)|(?P<value>:[A-Za-z0-9_]+)"
    r"|(?P<number>[0-9]+)|(?P<sign><>|<=|>=|[=<>(),.+\-\[\]]))"
)
_KEYWORDS: Final = frozenset({"AND", "OR", "NOT", "BETWEEN", "IN", "SET", "ADD", "REMOVE", "DELETE"})
_COMPARATORS: Final = frozenset({"=", "<>", "<", "<=", ">", ">="})
_TESTS: Final = {"attribute_exists": 1, "attribute_not_exists": 1, "begins_with": 2, "contains": 2}
_PATH_TESTS: Final = frozenset({"attribute_exists", "attribute_not_exists"})
_NOT_MODELLED: Final = frozenset({"attribute_type", "list_append"})


class Token(NamedTuple):
    kind: str
    text: str


END: Final = Token("end", "")


def parse_condition(text: str, names: Mapping[str, str]) -> ParsedCondition:
    parser = _Parser(text, names)
    root, _ = parser.condition()
    parser.expect_end()
    return ParsedCondition(*parser.used(), root)


def parse_update(text: str, names: Mapping[str, str]) -> ParsedUpdate:
    parser = _Parser(text, names)
    actions = parser.update()
    parser.expect_end()
    return ParsedUpdate(*parser.used(), actions)


def _tokens(text: str) -> list[Token]:
    if not text:
        raise ValidationException(Refusal.EMPTY_EXPRESSION)
    if len(text.encode()) > EXPRESSION_BYTES_MAX:
        raise ValidationException(Refusal.EXPRESSION_SIZE, f"{len(text.encode())} bytes")
    tokens = []
    position = 0
    end = len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValidationException(Refusal.SYNTAX, f"near {text[position : position + 20]!r} in {text!r}")
        tokens.append(Token(str(match.lastgroup), match[match.lastgroup or 0]))
        position = match.end()
    return tokens


class _Parser:
    def __init__(self, text: str, names: Mapping[str, str]) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._next = 0
        self._names = names
        self._operators = 0
        self._used_names: set[str] = set()
        self._used_values: set[str] = set()
        self._paths: list[Path] = []

    def used(self) -> tuple[frozenset[str], frozenset[str], tuple[Path, ...]]:
        return frozenset(self._used_names), frozenset(self._used_values), tuple(self._paths)

    def expect_end(self) -> None:
        if self._peek() is not END:
            raise self._failure()

    def condition(self) -> tuple[Node, bool]:
        """The tree, and whether it stands in parentheses of its own."""
        return self._joined("OR", lambda: self._joined("AND", self._negation))

    def update(self) -> tuple[Action, ...]:
        actions: list[Action] = []
        sections: set[str] = set()
        while (token := self._peek()) is not END:
            verb = token.text.upper()
            if token.kind != "word" or verb not in {"SET", "ADD", "REMOVE", "DELETE"}:
                raise self._failure()
            if verb == "DELETE":
                raise NotModelled("DELETE")
            if verb in sections:
                raise ValidationException(Refusal.SECTION_TWICE, verb)
            sections.add(verb)
            self._next += 1
            actions.append(self._action(verb))
            while self._take(","):
                actions.append(self._action(verb))
        if not actions:
            raise self._failure()
        return tuple(actions)

    def _joined(self, sign: str, part: "Callable[[], tuple[Node, bool]]") -> tuple[Node, bool]:
        first, parenthesized = part()
        parts = [first]
        while self._keyword(sign):
            self._count()
            parts.append(part()[0])
        return (first, parenthesized) if len(parts) == 1 else (Both(sign, tuple(parts)), False)

    def _negation(self) -> tuple[Node, bool]:
        if self._keyword("NOT"):
            self._count()
            return Not(self._negation()[0]), False
        return self._primary()

    def _primary(self) -> tuple[Node, bool]:
        if self._take("("):
            inner, parenthesized = self.condition()
            self._expect(")")
            if parenthesized:
                raise ValidationException(Refusal.REDUNDANT_PARENTHESES, self._text)
            return inner, True
        token = self._peek()
        if token.kind == "word" and self._peek(1).text == "(" and token.text != "size":
            return self._test(token.text), False
        return self._comparison(), False

    def _test(self, function: str) -> Node:
        if function in _NOT_MODELLED:
            raise NotModelled(function)
        if function not in _TESTS:
            raise ValidationException(Refusal.UNKNOWN_FUNCTION, function)
        self._next += 2
        self._count()
        operands = self._list(self._operand)
        if len(operands) != _TESTS[function]:
            raise ValidationException(Refusal.SYNTAX, f"{function} with {len(operands)} operands")
        if function in _PATH_TESTS and not isinstance(operands[0], Path):
            raise ValidationException(Refusal.NEEDS_PATH, function)
        if self._peek().text in _COMPARATORS:
            raise ValidationException(Refusal.FUNCTION_PLACE, function)
        self._distinct(operands)
        return Function(function, operands)

    def _comparison(self) -> Node:
        left = self._operand()
        token = self._peek()
        if token.text in {"+", "-"}:
            raise ValidationException(Refusal.ARITHMETIC, self._text)
        self._count()
        if token.text in _COMPARATORS:
            self._next += 1
            right = self._operand()
            if self._peek().text in {"+", "-"}:
                raise ValidationException(Refusal.ARITHMETIC, self._text)
            self._distinct((left, right))
            return Compare(token.text, left, right)
        if self._keyword("BETWEEN"):
            low = self._operand()
            if not self._keyword("AND"):
                raise self._failure()
            high = self._operand()
            self._distinct((left, low, high))
            return Between(left, low, high)
        if self._keyword("IN"):
            self._expect("(")
            choices = self._list(self._operand)
            if len(choices) > IN_OPERANDS_MAX:
                raise ValidationException(Refusal.IN_OPERANDS, str(len(choices)))
            self._distinct((left, *choices))
            return In(left, choices)
        if isinstance(left, Size):
            raise ValidationException(Refusal.FUNCTION_PLACE, "size")
        raise self._failure()

    def _operand(self) -> Operand:
        token = self._peek()
        if token.kind == "value":
            return self._value()
        if token.text == "(":
            raise NotModelled("an operand in parentheses")
        if token.text == "size" and self._peek(1).text == "(":
            self._next += 2
            self._count()
            inner = self._value() if self._peek().kind == "value" else self._path()
            self._expect(")")
            return Size(inner)
        return self._path()

    def _action(self, verb: str) -> Action:
        path = self._path()
        if verb == "REMOVE":
            return Action(verb, path, None)
        if verb == "ADD":
            if self._peek().kind != "value":
                raise self._failure()
            return Action(verb, path, self._value())
        self._expect("=")
        return Action(verb, path, self._sum())

    def _sum(self) -> Term:
        left = self._term()
        sign = self._peek().text
        if sign not in {"+", "-"}:
            return left
        self._next += 1
        self._count()
        return Sum(left, sign, self._term())

    def _term(self) -> Term:
        token = self._peek()
        if token.kind == "value":
            return self._value()
        if token.text == "(":
            raise NotModelled("a term in parentheses")
        if token.kind == "word" and self._peek(1).text == "(":
            return self._if_not_exists(token.text)
        return self._path()

    def _if_not_exists(self, function: str) -> Term:
        if function in _NOT_MODELLED:
            raise NotModelled(function)
        if function != "if_not_exists":
            raise ValidationException(Refusal.UNKNOWN_FUNCTION, function)
        self._next += 2
        self._count()
        if self._peek().kind == "value":
            raise ValidationException(Refusal.NEEDS_PATH, function)
        path = self._path()
        self._expect(",")
        fallback = self._term()
        self._expect(")")
        if fallback == path:
            raise ValidationException(Refusal.SAME_OPERAND, function)
        return IfNotExists(path, fallback)

    def _path(self) -> Path:
        parts: list[str | int] = [self._name()]
        while True:
            if self._take("."):
                parts.append(self._name())
            elif self._take("["):
                number = self._peek()
                if number.kind != "number":
                    raise self._failure()
                self._next += 1
                self._expect("]")
                parts.append(int(number.text))
            else:
                break
        path = Path(tuple(parts))
        self._paths.append(path)
        return path

    def _name(self) -> str:
        token = self._peek()
        if token.kind == "name":
            self._next += 1
            if token.text not in self._names:
                raise ValidationException(Refusal.UNDEFINED_NAME, token.text)
            self._used_names.add(token.text)
            if not self._names[token.text]:
                raise ValidationException(Refusal.ATTRIBUTE_NAME, token.text)
            return self._names[token.text]
        if token.kind != "word" or token.text.upper() in _KEYWORDS:
            raise self._failure()
        if token.text.upper() in RESERVED_WORDS:
            raise ValidationException(Refusal.RESERVED_WORD, token.text)
        self._next += 1
        return token.text

    def _value(self) -> Given:
        token = self._peek()
        self._next += 1
        self._used_values.add(token.text)
        return Given(token.text)

    def _list(self, element: Callable[[], Operand]) -> tuple[Operand, ...]:
        elements = [element()]
        while self._take(","):
            elements.append(element())
        self._expect(")")
        return tuple(elements)

    def _distinct(self, operands: Sequence[Operand]) -> None:
        first = operands[0]
        if isinstance(first, Path) and first in operands[1:]:
            raise ValidationException(Refusal.SAME_OPERAND, str(first.parts))

    def _count(self) -> None:
        self._operators += 1
        if self._operators > OPERATORS_MAX:
            raise ValidationException(Refusal.OPERATORS)

    def _peek(self, ahead: int = 0) -> Token:
        position = self._next + ahead
        return self._tokens[position] if position < len(self._tokens) else END

    def _take(self, sign: str) -> bool:
        token = self._peek()
        if token.kind == "sign" and token.text == sign:
            self._next += 1
            return True
        return False

    def _keyword(self, word: str) -> bool:
        token = self._peek()
        if token.kind == "word" and token.text.upper() == word:
            self._next += 1
            return True
        return False

    def _expect(self, sign: str) -> None:
        if not self._take(sign):
            raise self._failure()

    def _failure(self) -> ValidationException:
        return ValidationException(Refusal.SYNTAX, f"at {self._peek().text!r} in {self._text!r}")
