"""What every function has in common, and what each may do."""

from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import pytest
from aws_cdk import aws_lambda as lambda_
from aws_cdk.assertions import Template

import stacks.function
import stacks.layers
import stacks.registry
from sluice.repository import keys
from stacks.function import FunctionSpec, ServiceFunction, _code
from stacks.layers import ServiceLayers
from stacks.settings import ENVIRONMENTS, WheelTarget
from stacks.wheels import LayerBuild, core_layer
from tests.infrastructure.assembly import Assembly, new_app

TABLE_ACTIONS = {
    "data_plane": {
        "dynamodb:BatchGetItem",
        "dynamodb:ConditionCheckItem",
        "dynamodb:DeleteItem",
        "dynamodb:GetItem",
        "dynamodb:PutItem",
        "dynamodb:Query",
        "dynamodb:UpdateItem",
    },
    "control_plane": {
        "dynamodb:BatchGetItem",
        "dynamodb:ConditionCheckItem",
        "dynamodb:DeleteItem",
        "dynamodb:GetItem",
        "dynamodb:PutItem",
        "dynamodb:Query",
        "dynamodb:UpdateItem",
    },
    "identity": {
        "dynamodb:BatchGetItem",
        "dynamodb:ConditionCheckItem",
        "dynamodb:DeleteItem",
        "dynamodb:GetItem",
        "dynamodb:PutItem",
        "dynamodb:Query",
        "dynamodb:UpdateItem",
    },
}
INDEX_ACTIONS = {"dynamodb:Query"}
QUERIED_INDEXES = {
    "data_plane": [],
    "control_plane": ["GSI1", "GSI2", "GSI3", "GSI4"],
    "identity": ["GSI1", "GSI3"],
}
# The secrets of each function, by the variable that names them to it.
SECRETS = {
    "data_plane": {"SLUICE_SIGNING_SECRET": "Signing", "SLUICE_TOKEN_SECRET": "Token"},
    "control_plane": {
        "SLUICE_SIGNING_SECRET": "Signing",
        "SLUICE_TOKEN_SECRET": "Token",
        "SLUICE_OPERATOR_SECRET": "Operator",
    },
    "identity": {
        "SLUICE_SIGNING_SECRET": "Signing",
        "SLUICE_TOKEN_SECRET": "Token",
        "SLUICE_OPERATOR_SECRET": "Operator",
        "SLUICE_CREDENTIALS_SECRET": "Credentials",
    },
}
SERVICES = tuple(TABLE_ACTIONS)
# Those that resolve labels.
READS_PROFILES = {"data_plane", "control_plane"}
PROFILE_ACTIONS = {"bedrock:GetInferenceProfile"}
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
OBJECT_ACTIONS = {"s3:AbortMultipartUpload", "s3:PutObject"}
SECRET_ACTIONS = {"secretsmanager:GetSecretValue"}
SECRET_KEY_ACTIONS = {"kms:Decrypt"}
WRITES = {"dynamodb:DeleteItem", "dynamodb:PutItem", "dynamodb:UpdateItem"}
READS = {"dynamodb:BatchGetItem", "dynamodb:ConditionCheckItem", "dynamodb:GetItem", "dynamodb:Query"}


def leading(pattern: str) -> dict[str, Any]:
    return {"ForAnyValue:StringLike": {"dynamodb:LeadingKeys": [pattern]}}


NO_REGISTRY_WRITES = (WRITES, leading("_/*"))
NO_CLIENT_READS = (READS, leading("_/CLIENT#*"))
DENIED = {
    "data_plane": [NO_REGISTRY_WRITES, NO_CLIENT_READS],
    "control_plane": [NO_REGISTRY_WRITES, NO_CLIENT_READS],
    "identity": [],
}


def actions_of(statement: Any) -> list[str]:
    """One action stands in a template without its list."""
    actions = statement["Action"]
    return [actions] if isinstance(actions, str) else list(actions)


def policies_of(assembly: Assembly, service: str) -> list[Any]:
    role, attribute = assembly.functions()[service]["Role"]["Fn::GetAtt"]
    assert attribute == "Arn"
    policies = assembly.resources("Api", "AWS::IAM::Policy").values()
    return [policy for policy in policies if {"Ref": role} in policy["Roles"]]


def test_the_functions_are_these(each: Assembly) -> None:
    assert each.functions().keys() == set(SERVICES)


@pytest.mark.parametrize("service", SERVICES)
def test_permissions_are_exactly_these(each: Assembly, service: str) -> None:
    (policy,) = policies_of(each, service)
    statements = allowed(policy)
    found = {frozenset(actions_of(statement)): statement for statement in statements}
    table_actions = frozenset(TABLE_ACTIONS[service])
    expected = [table_actions, TRACE_ACTIONS, LOG_ACTIONS, SECRET_ACTIONS]
    if each.settings.customer_managed_key:
        expected += [KEY_ACTIONS, SECRET_KEY_ACTIONS]
    if QUERIED_INDEXES[service]:
        expected.append(INDEX_ACTIONS)
    if service in READS_PROFILES:
        expected.append(PROFILE_ACTIONS)
    assert found.keys() == {frozenset(actions) for actions in expected}
    assert len(statements) == len(expected)

    (table,) = each.resources("Data", "AWS::DynamoDB::GlobalTable")
    assert each.exported("Data", found[table_actions]["Resource"]) == {"Fn::GetAtt": [table, "Arn"]}
    if QUERIED_INDEXES[service]:
        indexes = [str(resource) for resource in found[frozenset(INDEX_ACTIONS)]["Resource"]]
        assert [index.rsplit("/index/", 1)[1][:4] for index in indexes] == QUERIED_INDEXES[service]
    log_group = each.functions()[service]["LoggingConfig"]["LogGroup"]["Ref"]
    assert found[frozenset(LOG_ACTIONS)]["Resource"] == {"Fn::GetAtt": [log_group, "Arn"]}
    if each.settings.customer_managed_key:
        use_of_key = found[frozenset(KEY_ACTIONS)]
        (key,) = each.resources("Data", "AWS::KMS::Key")
        assert each.exported("Data", use_of_key["Resource"]) == {"Fn::GetAtt": [key, "Arn"]}
        assert use_of_key["Condition"]["StringEquals"].keys() == {"kms:ViaService"}


def allowed(policy: Any) -> list[Any]:
    return [statement for statement in policy["PolicyDocument"]["Statement"] if statement["Effect"] == "Allow"]


def denials(assembly: Assembly, policy: Any) -> list[tuple[set[str], Any]]:
    """Actions and condition of each denial; all are about the table."""
    statements = [statement for statement in policy["PolicyDocument"]["Statement"] if statement["Effect"] == "Deny"]
    (table,) = assembly.resources("Data", "AWS::DynamoDB::GlobalTable")
    for statement in statements:
        assert assembly.exported("Data", statement["Resource"]) == {"Fn::GetAtt": [table, "Arn"]}
    return [(set(actions_of(statement)), statement["Condition"]) for statement in statements]


@pytest.mark.parametrize("service", SERVICES)
def test_only_identity_writes_the_registry_and_reads_clients(each: Assembly, service: str) -> None:
    (policy,) = policies_of(each, service)
    assert denials(each, policy) == DENIED[service]


def test_the_denied_patterns_are_those_of_the_keys() -> None:
    """The stacks may not import the keys, so that the beginnings stand in both: this keeps them the same."""
    clients, registry = stacks.registry.CLIENT_ITEMS, stacks.registry.REGISTRY_ITEMS
    assert fnmatchcase(keys.client("a" * 20).pk, clients)
    for key in (keys.client("x"), keys.revoked_token("x"), keys.namespace_by_name("x"), keys.job("_", "x")):
        assert fnmatchcase(key.pk, registry)
    for key in (keys.entity("_x", "CLIENT"), keys.org_settings("a"), keys.app_settings("a", "_")):
        assert not fnmatchcase(key.pk, registry)


@pytest.mark.parametrize("service", SERVICES)
def test_a_function_reads_its_own_secrets_and_no_other(each: Assembly, service: str) -> None:
    (policy,) = policies_of(each, service)
    found = {frozenset(actions_of(statement)): statement for statement in allowed(policy)}
    secrets = sorted(SECRETS[service].values())
    read = found[frozenset(SECRET_ACTIONS)]
    assert each.secrets(read["Resource"]) == secrets
    assert "Condition" not in read
    if each.settings.customer_managed_key:
        (key,) = each.resources("Data", "AWS::KMS::Key")
        decrypt = found[frozenset(SECRET_KEY_ACTIONS)]
        assert each.exported("Data", decrypt["Resource"]) == {"Fn::GetAtt": [key, "Arn"]}
        condition = decrypt["Condition"]["StringEquals"]
        assert condition.keys() == {"kms:ViaService", "kms:EncryptionContext:SecretARN"}
        assert condition["kms:ViaService"]["Fn::Join"][1][0] == "secretsmanager."
        assert each.secrets(condition["kms:EncryptionContext:SecretARN"]) == secrets


def test_no_function_shares_its_role_or_log_group(each: Assembly) -> None:
    functions = each.functions().values()
    roles = {function["Role"]["Fn::GetAtt"][0] for function in functions}
    assert roles == set(each.resources("Api", "AWS::IAM::Role"))
    groups = {function["LoggingConfig"]["LogGroup"]["Ref"] for function in functions}
    assert groups < set(each.resources("Api", "AWS::Logs::LogGroup"))
    assert len(roles) == len(groups) == len(functions)
    for policy in each.resources("Api", "AWS::IAM::Policy").values():
        assert len(policy["Roles"]) == 1


@pytest.mark.parametrize("service", sorted(READS_PROFILES))
def test_labels_may_name_inference_profiles_of_this_account_alone(each: Assembly, service: str) -> None:
    (policy,) = policies_of(each, service)
    (statement,) = (one for one in allowed(policy) if set(actions_of(one)) == PROFILE_ACTIONS)
    assert "Condition" not in statement
    assert statement["Resource"] == [
        {
            "Fn::Join": [
                "",
                ["arn:", {"Ref": "AWS::Partition"}, ":bedrock:*:", {"Ref": "AWS::AccountId"}, f":{kind}/*"],
            ]
        }
        for kind in ("application-inference-profile", "inference-profile")
    ]


def test_only_tracing_profiles_and_the_archive_have_a_wildcard(each: Assembly) -> None:
    for statement in each.statements("AWS::IAM::Policy"):
        assert not [action for action in actions_of(statement) if "*" in action]
        if "*" in str(statement["Resource"]):
            assert set(actions_of(statement)) in (
                TRACE_ACTIONS,
                # The rollup's, which CDK joins.
                TRACE_ACTIONS | {"pricing:GetProducts"},
                PROFILE_ACTIONS,
                {"s3:DeleteObjectVersion"},
                OBJECT_ACTIONS,
            )


def test_roles_have_no_managed_policy_and_serve_lambda_only(each: Assembly) -> None:
    roles = each.resources("Api", "AWS::IAM::Role").values()
    assert roles
    for role in roles:
        assert "ManagedPolicyArns" not in role
        assert "Policies" not in role
        (trust,) = role["AssumeRolePolicyDocument"]["Statement"]
        assert trust["Principal"] == {"Service": "lambda.amazonaws.com"}


@pytest.mark.parametrize("service", SERVICES)
def test_runtime_logs_and_tracing(each: Assembly, service: str) -> None:
    function = each.functions()[service]
    assert function["Runtime"] == "python3.14"
    assert function["Architectures"] == ["arm64"]
    assert function["Handler"] == f"{service}.handler.handler"
    assert function["TracingConfig"] == {"Mode": "Active"}
    assert function["LoggingConfig"]["LogFormat"] == "JSON"
    assert function["MemorySize"] == each.settings.memory_mb
    assert function["Timeout"] == 15


@pytest.mark.parametrize("service", SERVICES)
def test_a_lost_answer_can_be_repeated_before_the_function_times_out(each: Assembly, service: str) -> None:
    function = each.functions()[service]
    store_timeout_ms = int(function["Environment"]["Variables"]["SLUICE_STORE_TIMEOUT_MS"])
    assert 2 * store_timeout_ms < function["Timeout"] * 1_000
    # The API's own bound, which would answer without a problem document.
    assert function["Timeout"] < 30


@pytest.mark.parametrize("service", SERVICES)
def test_the_deployed_code_holds_the_handler_and_no_other_function(each: Assembly, service: str) -> None:
    digest = each.functions()[service]["Code"]["S3Key"].removesuffix(".zip")
    asset = each.folder / f"asset.{digest}"
    assert [path.name for path in asset.iterdir()] == [service]
    assert (asset / service / "handler.py").is_file()


@pytest.mark.parametrize(("environment", "days"), [("local", 1), ("dev", 7), ("staging", 30), ("prod", 365)])
def test_every_log_group_has_an_end(synthesized: Callable[[str], Assembly], environment: str, days: int) -> None:
    groups = synthesized(environment).resources("Api", "AWS::Logs::LogGroup").values()
    # One per function and the access log.
    assert [group["RetentionInDays"] for group in groups] == [days] * (len(SERVICES) + 1)


@pytest.mark.parametrize(("environment", "on"), [("local", False), ("dev", True), ("staging", True), ("prod", True)])
def test_snap_start(synthesized: Callable[[str], Assembly], environment: str, on: bool) -> None:
    functions = synthesized(environment).functions()
    expected = {"ApplyOn": "PublishedVersions"} if on else None
    assert {name: function.get("SnapStart") for name, function in functions.items()} == dict.fromkeys(
        SERVICES, expected
    )


@pytest.mark.parametrize("service", SERVICES)
def test_alias_points_to_the_published_version(each: Assembly, service: str) -> None:
    _, alias = each.alias(service)
    function = {"Ref": each.logical_id(service)}
    versions = each.resources("Api", "AWS::Lambda::Version").items()
    (version,) = (name for name, properties in versions if properties["FunctionName"] == function)
    assert alias["Name"] == "live"
    assert alias["FunctionVersion"] == {"Fn::GetAtt": [version, "Version"]}


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ("local", {"SLUICE_STORE_TIMEOUT_MS": "5000"}),
        ("dev", {"SLUICE_STORE_TIMEOUT_MS": "2000"}),
        ("staging", {"SLUICE_STORE_TIMEOUT_MS": "2000"}),
        ("prod", {"SLUICE_STORE_TIMEOUT_MS": "2000"}),
    ],
)
def test_environment_variables(
    synthesized: Callable[[str], Assembly], environment: str, expected: dict[str, str], service: str
) -> None:
    assembly = synthesized(environment)
    variables = dict(assembly.functions()[service]["Environment"]["Variables"])
    (table,) = assembly.resources("Data", "AWS::DynamoDB::GlobalTable")
    assert assembly.exported("Data", variables.pop("SLUICE_TABLE")) == {"Ref": table}
    for variable, purpose in SECRETS[service].items():
        assert assembly.exported("Data", variables.pop(variable)) == {"Ref": assembly.secret(purpose)}
    assert variables == {
        "SLUICE_ENVIRONMENT": environment,
        "POWERTOOLS_SERVICE_NAME": service,
        "POWERTOOLS_METRICS_NAMESPACE": "Sluice",
        "POWERTOOLS_LOG_LEVEL": "INFO",
        **expected,
    }


@pytest.mark.parametrize("service", SERVICES)
def test_the_functions_of_a_stack_share_its_pair_of_layers(each: Assembly, service: str) -> None:
    layers = each.functions()[service]["Layers"]
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
