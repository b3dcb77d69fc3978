"""What the table refuses outright. In a simulation each of these is a bug of ours and fails the run."""

from enum import StrEnum


class Refusal(StrEnum):
    """Why a request is invalid. The engines differ in which of these they enforce: see `disagreements.py`."""

    SYNTAX = "syntax"
    EMPTY_EXPRESSION = "empty expression"
    EXPRESSION_SIZE = "expression over 4 KB"
    OPERATORS = "more than 300 operators"
    IN_OPERANDS = "more than 100 operands of IN"
    ARITHMETIC = "arithmetic in a condition"
    RESERVED_WORD = "reserved word"
    UNKNOWN_FUNCTION = "unknown function"
    FUNCTION_PLACE = "function used where it may not be"
    NEEDS_PATH = "function requires a path"
    SAME_OPERAND = "first operand used again"
    REDUNDANT_PARENTHESES = "redundant parentheses"
    UNDEFINED_NAME = "undefined name"
    UNDEFINED_VALUE = "undefined value"
    UNUSED_NAME = "unused name"
    UNUSED_VALUE = "unused value"
    BAD_PLACEHOLDER = "malformed name or value"
    PLACEHOLDERS_ALONE = "names or values without an expression"
    OPERAND_TYPE = "operand of a wrong type"
    BOUNDS_CROSSED = "BETWEEN bounds crossed"
    BOUNDS_TYPES = "BETWEEN bounds of different types"
    SECTION_TWICE = "section used twice"
    PATHS_OVERLAP = "paths overlap"
    KEY_UPDATED = "key attribute updated"
    MISSING_ATTRIBUTE = "attribute that does not exist"
    STORED_TYPE = "stored operand of a wrong type"
    PATH_INVALID = "path invalid for update"
    NUMBER_DIGITS = "more than 38 digits"
    NUMBER_RANGE = "number out of range"
    RESULT_DIGITS = "result of more than 38 digits"
    ATTRIBUTE_NAME = "empty attribute name"
    NESTING = "nested deeper than 32 levels"
    KEY_SHAPE = "not the key of the table"
    KEY_TYPE = "key of a wrong type"
    KEY_EMPTY = "empty key"
    KEY_SIZE = "key too long"
    INDEX_KEY_TYPE = "index key of a wrong type"
    UPDATED_INDEX_KEY_TYPE = "index key updated to a wrong type"
    INDEX_KEY_EMPTY = "empty index key"
    INDEX_KEY_SIZE = "index key too long"
    INDEX_KEY_PATH = "path into an index key"
    ITEM_SIZE = "item over 400 KB"
    KEY_CONDITION = "key condition"
    KEY_CONDITION_OPERATOR = "operator not allowed in a key condition"
    FILTER_ON_KEY = "filter on a key attribute"
    FILTER_NOT_PROJECTED = "filter on an attribute that the index does not project"
    START_KEY = "exclusive start key"
    START_KEY_EXTRA = "exclusive start key with further attributes"
    NO_SUCH_INDEX = "no such index"
    CONSISTENT_INDEX = "consistent read of an index"
    LIMIT = "limit below one"
    BATCH_DUPLICATES = "one key twice in a batch"
    TRANSACTION_EMPTY = "empty transaction"
    TRANSACTION_ITEMS = "more than 100 items in a transaction"
    TRANSACTION_TWICE = "one item twice in a transaction"
    TRANSACTION_SIZE = "transaction over 4 MB"
    TRANSACTION_TOKEN = "transaction token"


class ValidationException(Exception):
    """As AWS calls it."""

    def __init__(self, kind: Refusal, detail: str = "") -> None:
        super().__init__(f"{kind.value}: {detail}" if detail else kind.value)
        self.kind = kind


class IdempotentParameterMismatch(Exception):
    """A transaction token came back with another request."""


class NotModelled(Exception):
    """AWS knows it, the simulated table does not. Model it before the product uses it."""
