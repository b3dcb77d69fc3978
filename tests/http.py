"""Calls a handler as API Gateway does: event in, answer out, on moto's DynamoDB."""

import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import boto3
import pytest
from moto import mock_aws

from local.table import create_table
from sluice.core.identity import Role
from sluice.repository.wire import item_to_wire
from sluice.shell import clock_ms
from tests.tenancy import KEY, OPERATOR_KEY, access_token, tenant_items

TABLE = "sluice-test"
NAMESPACE = "default"
APP = "app-1"
SECRETS = {"SIGNING": KEY, "TOKEN": KEY, "OPERATOR": OPERATOR_KEY, "CREDENTIALS": KEY}
REQUEST_ID = "request-7"


@dataclass
class Context:
    function_name: str = "function"
    memory_limit_in_mb: int = 512
    invoked_function_arn: str = "arn:aws:lambda:us-east-1:123456789012:function:function"
    aws_request_id: str = "lambda-request"


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: Any

    @property
    def problem(self) -> str:
        """The kind of problem, after checking that it is a well-formed problem document."""
        assert self.headers["Content-Type"] == "application/problem+json"
        assert self.body["status"] == self.status
        assert self.body["request_id"] == REQUEST_ID
        assert self.body["title"]
        assert self.body["detail"]
        kind: str = self.body["type"].removeprefix("urn:sluice:problem:")
        return kind


Call = Callable[..., Answer]


@contextmanager
def deployed(module: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The handler's module, imported anew on an empty table."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "SLUICE_ENVIRONMENT": "test",
        "SLUICE_TABLE": TABLE,
    }.items():
        monkeypatch.setenv(name, value)
    with mock_aws():
        client = boto3.client("dynamodb")
        create_table(client, TABLE)
        for item in tenant_items(NAMESPACE, NAMESPACE, APP):
            client.put_item(TableName=TABLE, Item=item_to_wire(item))
        for name, key in SECRETS.items():
            monkeypatch.setenv(f"SLUICE_{name}_SECRET", create_secret(name, key))
        yield importlib.reload(importlib.import_module(module))


def create_secret(name: str, key: str = KEY) -> str:
    """As the stack makes it; answers its ARN."""
    keys = json.dumps({"current": key, "previous": ""})
    arn: str = boto3.client("secretsmanager").create_secret(Name=name, SecretString=keys)["ARN"]
    return arn


def authorized(entity: str = NAMESPACE, role: Role = Role.ORG) -> dict[str, str]:
    """The header of a caller in the namespace of these tests."""
    token = access_token("test", NAMESPACE, entity, role, now_ms=clock_ms())
    return {"authorization": f"Bearer {token}"}


AS_OPERATOR = {"x-api-key": OPERATOR_KEY}
AS_NOBODY: Mapping[str, str] = {}


def caller_of(module: ModuleType, default_method: str, default_path: str) -> Call:
    def send(
        method: str = default_method,
        path: str = default_path,
        body: Any = None,
        *,
        raw: str | None = None,
        content_type: str | None = "application/json",
        base64_body: bool = False,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
        caller: Mapping[str, str] | None = None,
    ) -> Answer:
        """`caller`: the headers that say who calls; the org of these tests if there are none."""
        who = authorized() if caller is None else caller
        event = {
            "version": "2.0",
            "routeKey": "$default",
            "rawPath": path,
            "rawQueryString": "&".join(f"{name}={value}" for name, value in (query or {}).items()),
            "queryStringParameters": dict(query or {}),
            "headers": {**({} if content_type is None else {"content-type": content_type}), **who, **(headers or {})},
            "requestContext": {"http": {"method": method, "path": path}, "requestId": REQUEST_ID, "stage": "$default"},
            "body": raw if body is None else json.dumps(body),
            "isBase64Encoded": base64_body,
        }
        answer = module.handler(event, Context())
        text = answer.get("body")
        return Answer(answer["statusCode"], answer["headers"], json.loads(text) if text else None)

    return send


def served_routes(module: ModuleType) -> set[tuple[str, str]]:
    resolver = module.application._resolver
    return {(route.path, route.method) for route in [*resolver._static_routes, *resolver._dynamic_routes]}


def items_in_table() -> list[Any]:
    """All that was added or changed since the tenant was made."""
    first = [item_to_wire(item) for item in tenant_items(NAMESPACE, NAMESPACE, APP)]
    return [item for item in boto3.client("dynamodb").scan(TableName=TABLE)["Items"] if item not in first]
