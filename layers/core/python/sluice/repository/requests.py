"""Requests to the store: plain values, without the table's name. Built by pure functions, sent by the store alone."""

from typing import NotRequired, TypedDict

from sluice.repository.wire import Item, Value


class PutRequest(TypedDict):
    Item: Item
    ConditionExpression: NotRequired[str]
    ExpressionAttributeNames: NotRequired[dict[str, str]]
    ExpressionAttributeValues: NotRequired[dict[str, Value]]


class UpdateRequest(TypedDict):
    Key: Item
    UpdateExpression: str
    ConditionExpression: NotRequired[str]
    ExpressionAttributeNames: NotRequired[dict[str, str]]
    ExpressionAttributeValues: NotRequired[dict[str, Value]]


class DeleteRequest(TypedDict):
    Key: Item
    ConditionExpression: NotRequired[str]
    ExpressionAttributeNames: NotRequired[dict[str, str]]
    ExpressionAttributeValues: NotRequired[dict[str, Value]]


class CheckRequest(TypedDict):
    """A condition on an item that a transaction does not write."""

    Key: Item
    ConditionExpression: str
    ExpressionAttributeNames: NotRequired[dict[str, str]]
    ExpressionAttributeValues: NotRequired[dict[str, Value]]


class TransactWrite(TypedDict, total=False):
    """One element of a transaction: exactly one of these."""

    Put: PutRequest
    Update: UpdateRequest
    Delete: DeleteRequest
    ConditionCheck: CheckRequest


class ScanRequest(TypedDict, total=False):
    IndexName: str
    FilterExpression: str
    ProjectionExpression: str
    ExpressionAttributeNames: dict[str, str]
    ExpressionAttributeValues: dict[str, Value]
    ExclusiveStartKey: Item
    Limit: int
    ConsistentRead: bool


class QueryRequest(ScanRequest):
    KeyConditionExpression: str
    ScanIndexForward: NotRequired[bool]
