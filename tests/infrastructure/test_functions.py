"""What every function has in common, and what the data plane may do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import pytest
from aws_cdk import aws_lambda as lambda_
from aws_cdk.assertions import Template

import stacks.function
import stacks.layers
from stacks.function import FunctionSpec, ServiceFunction, _code
from stacks.layers import ServiceLayers
from stacks.settings import ENVIRONMENTS, WheelTarget
from stacks.wheels import LayerBuild, core_layer
from tests.infrastructure.assembly import Assembly, new_app

TABLE_ACTIONS = {"dynamodb:BatchGetItem", "dynamodb:GetItem", "dynamodb:PutItem", "dynamodb:UpdateItem"}
KEY_ACTIONS = {
    "kms:Decrypt",
    "kms:DescribeKey",
    "kms:Encrypt",
    "kms:GenerateDataKey",
    "kms:ReEncryptFrom",
    "kms:ReEncryptTo",
}
TRACE_ACTIONS = {"xray:PutTelemetryRecords", "xray:PutTraceSegments"}
LOG_ACTIONS = {"logs:CreateLogStream", "logs:PutLogEvents"}


def exported(assembly: Assembly, reference: Any) -> Any:
    """The value in the data stack that an import of the API stack stands for."""
    outputs = assembly.raw("Data")["Outputs"].values()
    (value,) = (o["Value"] for o in outputs if o.get("Export", {}).get("Name") == reference["Fn::ImportValue"])
    return value


def test_permissions_of_the_data_plane_are_exactly_these(each: Assembly) -> None:
    found = {frozenset(s["Action"]): s for s in each.only("Api", "AWS::IAM::Policy")["PolicyDocument"]["Statement"]}
    expected = [TABLE_ACTIONS, TRACE_ACTIONS, LOG_ACTIONS]
    if each.settings.customer_managed_key:
        expected.append(KEY_ACTIONS)
    assert found.keys() == {frozenset(actions) for actions in expected}
    assert {statement["Effect"] for statement in found.values()} == {"Allow"}

    (table,) = each.resources("Data", "AWS::DynamoDB::GlobalTable")
    assert exported(each, found[frozenset(TABLE_ACTIONS)]["Resource"]) == {"Fn::GetAtt": [table, "Arn"]}
    log_group = each.only("Api", "AWS::Lambda::Function")["LoggingConfig"]["LogGroup"]["Ref"]
    assert found[frozenset(LOG_ACTIONS)]["Resource"] == {"Fn::GetAtt": [log_group, "Arn"]}
    if each.settings.customer_managed_key:
        use_of_key = found[frozenset(KEY_ACTIONS)]
        (key,) = each.resources("Data", "AWS::KMS::Key")
        assert exported(each, use_of_key["Resource"]) == {"Fn::GetAtt": [key, "Arn"]}
        assert use_of_key["Condition"]["StringEquals"].keys() == {"kms:ViaService"}


def test_only_tracing_has_a_wildcard(each: Assembly) -> None:
    for statement in each.statements("AWS::IAM::Policy"):
        assert not [action for action in statement["Action"] if "*" in action]
        if "*" in str(statement["Resource"]):
            assert set(statement["Action"]) == TRACE_ACTIONS


def test_roles_have_no_managed_policy_and_serve_lambda_only(each: Assembly) -> None:
    role = each.only("Api", "AWS::IAM::Role")
    assert "ManagedPolicyArns" not in role
    assert "Policies" not in role
    (trust,) = role["AssumeRolePolicyDocument"]["Statement"]
    assert trust["Principal"] == {"Service": "lambda.amazonaws.com"}


def test_runtime_logs_and_tracing(each: Assembly) -> None:
    function = each.only("Api", "AWS::Lambda::Function")
    assert function["Runtime"] == "python3.14"
    assert function["Architectures"] == ["arm64"]
    assert function["Handler"] == "data_plane.handler.handler"
    assert function["TracingConfig"] == {"Mode": "Active"}
    assert function["LoggingConfig"]["LogFormat"] == "JSON"
    assert function["MemorySize"] == each.settings.memory_mb
    assert function["Timeout"] == 15


@pytest.mark.parametrize(("environment", "days"), [("local", 1), ("dev", 7), ("staging", 30), ("prod", 365)])
def test_every_log_group_has_an_end(synthesized: Callable[[str], Assembly], environment: str, days: int) -> None:
    groups = synthesized(environment).resources("Api", "AWS::Logs::LogGroup").values()
    assert [group["RetentionInDays"] for group in groups] == [days, days]


@pytest.mark.parametrize(("environment", "on"), [("local", False), ("dev", True), ("staging", True), ("prod", True)])
def test_snap_start(synthesized: Callable[[str], Assembly], environment: str, on: bool) -> None:
    function = synthesized(environment).only("Api", "AWS::Lambda::Function")
    assert function.get("SnapStart") == ({"ApplyOn": "PublishedVersions"} if on else None)


def test_alias_points_to_the_published_version(each: Assembly) -> None:
    alias = each.only("Api", "AWS::Lambda::Alias")
    (version,) = each.resources("Api", "AWS::Lambda::Version")
    assert alias["Name"] == "live"
    assert alias["FunctionVersion"] == {"Fn::GetAtt": [version, "Version"]}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ("local", {"SLUICE_STORE_TIMEOUT_MS": "5000", "SLUICE_OPEN_NAMESPACE": "default"}),
        ("dev", {"SLUICE_STORE_TIMEOUT_MS": "2000", "POWERTOOLS_LOG_LEVEL": "DEBUG"}),
        ("prod", {"SLUICE_STORE_TIMEOUT_MS": "2000"}),
    ],
)
def test_environment_variables(
    synthesized: Callable[[str], Assembly], environment: str, expected: dict[str, str]
) -> None:
    assembly = synthesized(environment)
    variables = dict(assembly.only("Api", "AWS::Lambda::Function")["Environment"]["Variables"])
    (table,) = assembly.resources("Data", "AWS::DynamoDB::GlobalTable")
    assert exported(assembly, variables.pop("SLUICE_TABLE")) == {"Ref": table}
    assert variables == {
        "SLUICE_ENVIRONMENT": environment,
        "POWERTOOLS_SERVICE_NAME": "data_plane",
        "POWERTOOLS_METRICS_NAMESPACE": "Sluice",
        "POWERTOOLS_LOG_LEVEL": "INFO",
        **expected,
    }


def test_layers_belong_to_the_functions_own_stack(each: Assembly) -> None:
    layers = each.only("Api", "AWS::Lambda::Function")["Layers"]
    assert {layer["Ref"] for layer in layers} == set(each.resources("Api", "AWS::Lambda::LayerVersion"))
    assert len(layers) == 2


def small_function(folder: Path, **environment: str) -> cdk.Stack:
    stack = cdk.Stack(new_app(folder), "Small")
    settings = ENVIRONMENTS["local"]
    ServiceFunction(
        stack,
        "Small",
        settings=settings,
        layers=ServiceLayers(stack, "Layers", settings=settings),
        spec=FunctionSpec(name="data_plane", description="-", timeout_seconds=3, environment=environment),
    )
    return stack


def test_a_reserved_variable_can_not_be_replaced(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="data_plane may not set POWERTOOLS_SERVICE_NAME"):
        small_function(tmp_path, POWERTOOLS_SERVICE_NAME="other")


def test_a_changed_layer_publishes_a_new_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the flag in cdk.json the alias would stay on the old layer."""

    def version(digest: str) -> str:
        build = LayerBuild(folder=core_layer(WheelTarget.THIS_MACHINE).folder, digest=digest)
        monkeypatch.setattr(stacks.layers, "core_layer", lambda target: build)
        stack = small_function(tmp_path / digest)
        template = Template.from_stack(stack)
        (name,) = template.find_resources("AWS::Lambda::Version")
        return str(name)

    assert version("a" * 64) == version("a" * 64)
    assert version("a" * 64) != version("b" * 64)


def test_code_is_the_functions_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("data_plane/handler.py", "data_plane/sub/x.py", "other/handler.py", "data_plane/__pycache__/h.pyc"):
        path = tmp_path / "lambdas" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    monkeypatch.setattr(stacks.function, "ROOT", tmp_path)
    app = new_app(tmp_path / "out")
    lambda_.Function(
        cdk.Stack(app, "Bare"),
        "Function",
        code=_code("data_plane"),
        handler="data_plane.handler.handler",
        runtime=lambda_.Runtime.PYTHON_3_14,
    )
    app.synth()
    (asset,) = (tmp_path / "out").glob("asset.*")
    files = {path.relative_to(asset).as_posix() for path in asset.rglob("*") if path.is_file()}
    assert files == {"data_plane/handler.py", "data_plane/sub/x.py"}
