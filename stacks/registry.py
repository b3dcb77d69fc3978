"""Who may do what with the registry's items: the namespaces, the clients and the revoked tokens of all tenants.

They share the table with everything else, so a function that may write its tenants' items could write these as well.
A denial by the first part of the partition key keeps each function out, whatever a bug or a forged key makes it ask.
A transaction is judged write by write; a query on an index is judged by the index's own key, which for these items
holds nothing but keys. A scan has no leading key: the purge's asks for keys only.
"""

from typing import Final

from aws_cdk import aws_dynamodb as dynamodb

from stacks.function import ServiceFunction

# As `sluice.repository.keys` builds them.
REGISTRY_ITEMS: Final = "_/*"
CLIENT_ITEMS: Final = "_/CLIENT#*"

_READS: Final = ("dynamodb:BatchGetItem", "dynamodb:ConditionCheckItem", "dynamodb:GetItem", "dynamodb:Query")
_REPLACEMENTS: Final = ("dynamodb:PutItem", "dynamodb:UpdateItem")
_REMOVALS: Final = ("dynamodb:DeleteItem",)


def keep_from_writing_registry(function: ServiceFunction, table: dynamodb.TableV2) -> None:
    function.deny((*_REMOVALS, *_REPLACEMENTS), [table.table_arn], conditions=_leading(REGISTRY_ITEMS))


def keep_from_reading_clients(function: ServiceFunction, table: dynamodb.TableV2) -> None:
    """The hashes of client secrets are for the function that compares them."""
    function.deny(_READS, [table.table_arn], conditions=_leading(CLIENT_ITEMS))


def let_only_remove_clients(function: ServiceFunction, table: dynamodb.TableV2) -> None:
    """For the purge: a client goes without being read, neither before nor in the answer to its removal."""
    keep_from_reading_clients(function, table)
    function.deny(_REPLACEMENTS, [table.table_arn], conditions=_leading(CLIENT_ITEMS))
    shown = {**_leading(CLIENT_ITEMS), "StringEquals": {"dynamodb:ReturnValues": "ALL_OLD"}}
    function.deny(_REMOVALS, [table.table_arn], conditions=shown)


def _leading(pattern: str) -> dict[str, object]:
    # Of the keys that one request names, one is enough.
    return {"ForAnyValue:StringLike": {"dynamodb:LeadingKeys": [pattern]}}
