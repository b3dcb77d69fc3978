"""The scheduled function: what starts it, what it may do, and what happens to a run that can not start."""

from collections.abc import Callable

import pytest

from tests.infrastructure.assembly import Assembly
from tests.infrastructure.test_functions import (
    KEY_ACTIONS,
    LOG_ACTIONS,
    READS,
    TRACE_ACTIONS,
    actions_of,
    allowed,
    denials,
    leading,
)

STACK = "Jobs"
SERVICE = "rollup"
TABLE_ACTIONS = {
    "dynamodb:BatchGetItem",
    "dynamodb:ConditionCheckItem",
    "dynamodb:DeleteItem",
    "dynamodb:GetItem",
    "dynamodb:PutItem",
    "dynamodb:Query",
    "dynamodb:Scan",
    "dynamodb:UpdateItem",
}
INDEX_ACTIONS = {"dynamodb:Query"}
AGE_ACTIONS = {"secretsmanager:DescribeSecret"}
LIST_ACTIONS = {"s3:ListBucketVersions"}
PRICE_LIST_ACTIONS = {"pricing:GetProducts"}
EMPTY_ACTIONS = {"s3:DeleteObjectVersion"}
AGED = ("Signing", "Token", "Operator")
QUEUE = "AWS::SQS::Queue"


def test_it_is_the_only_function(each: Assembly) -> None:
    assert each.functions(STACK).keys() == {SERVICE}


def test_it_is_told_which_secrets_age_and_where_the_archive_is(each: Assembly) -> None:
    """It answers nobody, so it needs the value of none."""
    variables = dict(each.functions(STACK)[SERVICE]["Environment"]["Variables"])
    (table,) = each.resources("Data", "AWS::DynamoDB::GlobalTable")
    assert each.exported("Data", variables.pop("SLUICE_TABLE")) == {"Ref": table}
    assert each.exported("Data", variables.pop("SLUICE_ARCHIVE_BUCKET")) == {"Ref": archive_name(each)}
    separator, parts = variables.pop("SLUICE_AGED_SECRETS")["Fn::Join"]
    arns = [part for part in parts if part != ","]
    assert (separator, parts) == ("", [arns[0], ",", arns[1], ",", arns[2]])
    assert [each.exported("Data", arn) for arn in arns] == [{"Ref": each.secret(purpose)} for purpose in AGED]
    assert variables == {
        "SLUICE_ENVIRONMENT": each.settings.name,
        "SLUICE_STORE_TIMEOUT_MS": str(each.settings.store_timeout_ms),
        "SLUICE_PRICING_REGION": "" if each.settings.name == "local" else "us-east-1",
        "POWERTOOLS_SERVICE_NAME": SERVICE,
        "POWERTOOLS_METRICS_NAMESPACE": "Sluice",
        "POWERTOOLS_LOG_LEVEL": "INFO",
    }


def test_permissions_are_exactly_these(each: Assembly) -> None:
    policy = each.only(STACK, "AWS::IAM::Policy")
    statements = allowed(policy)
    found = {frozenset(actions_of(statement)): statement for statement in statements}
    everywhere = everywhere_actions(each)
    expected = [TABLE_ACTIONS, INDEX_ACTIONS, everywhere, LOG_ACTIONS, AGE_ACTIONS, LIST_ACTIONS, EMPTY_ACTIONS]
    if each.settings.customer_managed_key:
        expected.append(KEY_ACTIONS)
    assert found.keys() == {frozenset(actions) for actions in expected}
    assert len(statements) == len(expected)
    (table,) = each.resources("Data", "AWS::DynamoDB::GlobalTable")
    assert each.exported("Data", found[frozenset(TABLE_ACTIONS)]["Resource"]) == {"Fn::GetAtt": [table, "Arn"]}
    indexes = [resource["Fn::Join"][1] for resource in found[frozenset(INDEX_ACTIONS)]["Resource"]]
    assert [index[1] for index in indexes] == ["/index/GSI3", "/index/GSI4"]
    assert {str(each.exported("Data", index[0])) for index in indexes} == {str({"Fn::GetAtt": [table, "Arn"]})}
    assert found[frozenset(everywhere)]["Resource"] == "*"
    log_group = each.functions(STACK)[SERVICE]["LoggingConfig"]["LogGroup"]["Ref"]
    assert found[frozenset(LOG_ACTIONS)]["Resource"] == {"Fn::GetAtt": [log_group, "Arn"]}
    if each.settings.customer_managed_key:
        use_of_key = found[frozenset(KEY_ACTIONS)]
        (key,) = each.resources("Data", "AWS::KMS::Key")
        assert each.exported("Data", use_of_key["Resource"]) == {"Fn::GetAtt": [key, "Arn"]}
        assert use_of_key["Condition"]["StringEquals"].keys() == {"kms:ViaService"}


def everywhere_actions(assembly: Assembly) -> set[str]:
    """What has no resource to name. The engine of the local environment has no price list."""
    return TRACE_ACTIONS if assembly.settings.name == "local" else TRACE_ACTIONS | PRICE_LIST_ACTIONS


def archive_name(assembly: Assembly) -> str:
    (name,) = (n for n, b in assembly.resources("Data", "AWS::S3::Bucket").items() if "LoggingConfiguration" in b)
    return name


def test_it_may_empty_the_archive_of_a_namespace_and_read_none_of_it(each: Assembly) -> None:
    found = {frozenset(actions_of(one)): one for one in allowed(each.only(STACK, "AWS::IAM::Policy"))}
    bucket = {"Fn::GetAtt": [archive_name(each), "Arn"]}
    listed = found[frozenset(LIST_ACTIONS)]
    assert each.exported("Data", listed["Resource"]) == bucket
    assert listed["Condition"] == {"StringLike": {"s3:prefix": ["archive/ns=*"]}}
    start, end = found[frozenset(EMPTY_ACTIONS)]["Resource"]["Fn::Join"][1]
    assert (each.exported("Data", start), end) == (bucket, "/archive/ns=*")


def test_it_may_ask_for_the_age_of_three_secrets_and_for_no_value(each: Assembly) -> None:
    found = {frozenset(actions_of(one)): one for one in allowed(each.only(STACK, "AWS::IAM::Policy"))}
    described = found[frozenset(AGE_ACTIONS)]["Resource"]
    assert each.secrets(described) == sorted(AGED)


def test_it_removes_clients_without_seeing_them(each: Assembly) -> None:
    clients = leading("_/CLIENT#*")
    assert denials(each, each.only(STACK, "AWS::IAM::Policy")) == [
        # CDK joins the statements that differ by their actions only.
        (READS | {"dynamodb:PutItem", "dynamodb:UpdateItem"}, clients),
        ({"dynamodb:DeleteItem"}, {**clients, "StringEquals": {"dynamodb:ReturnValues": "ALL_OLD"}}),
    ]


def test_its_role_serves_lambda_only(each: Assembly) -> None:
    ((name, role),) = each.resources(STACK, "AWS::IAM::Role").items()
    assert each.functions(STACK)[SERVICE]["Role"] == {"Fn::GetAtt": [name, "Arn"]}
    assert "ManagedPolicyArns" not in role
    assert "Policies" not in role
    (trust,) = role["AssumeRolePolicyDocument"]["Statement"]
    assert trust["Principal"] == {"Service": "lambda.amazonaws.com"}


def test_one_runs_at_a_time_and_ends_within_its_minute(each: Assembly) -> None:
    function = each.functions(STACK)[SERVICE]
    assert function["ReservedConcurrentExecutions"] == 1
    assert function["Timeout"] == 60
    assert (function["Runtime"], function["Architectures"]) == ("python3.14", ["arm64"])
    assert function["TracingConfig"] == {"Mode": "Active"}


@pytest.mark.parametrize(("environment", "days"), [("local", 1), ("dev", 7), ("staging", 30), ("prod", 365)])
def test_its_log_group_has_an_end(synthesized: Callable[[str], Assembly], environment: str, days: int) -> None:
    assert synthesized(environment).only(STACK, "AWS::Logs::LogGroup")["RetentionInDays"] == days


def test_the_deployed_code_holds_the_handler_and_no_other_function(each: Assembly) -> None:
    digest = each.functions(STACK)[SERVICE]["Code"]["S3Key"].removesuffix(".zip")
    asset = each.folder / f"asset.{digest}"
    assert [path.name for path in asset.iterdir()] == [SERVICE]
    assert (asset / SERVICE / "handler.py").is_file()


def test_its_layers_are_its_stacks_own(each: Assembly) -> None:
    layers = {layer["Ref"] for layer in each.functions(STACK)[SERVICE]["Layers"]}
    assert layers == set(each.resources(STACK, "AWS::Lambda::LayerVersion"))
    assert len(layers) == 2


def test_every_minute_starts_the_published_version(each: Assembly) -> None:
    rule = each.only(STACK, "AWS::Events::Rule")
    alias, properties = each.alias(SERVICE, STACK)
    assert (rule["ScheduleExpression"], rule["State"]) == ("rate(1 minute)", "ENABLED")
    (target,) = rule["Targets"]
    assert target["Arn"] == {"Ref": alias}
    (version,) = each.resources(STACK, "AWS::Lambda::Version")
    assert properties["FunctionVersion"] == {"Fn::GetAtt": [version, "Version"]}
    (permission,) = each.resources(STACK, "AWS::Lambda::Permission").values()
    (rule_name,) = each.resources(STACK, "AWS::Events::Rule")
    assert permission["Principal"] == "events.amazonaws.com"
    assert permission["FunctionName"] == {"Ref": alias}
    assert permission["SourceArn"] == {"Fn::GetAtt": [rule_name, "Arn"]}


def test_a_run_that_can_not_start_is_kept(each: Assembly) -> None:
    ((queue, properties),) = each.resources(STACK, QUEUE).items()
    (target,) = each.only(STACK, "AWS::Events::Rule")["Targets"]
    assert target["DeadLetterConfig"] == {"Arn": {"Fn::GetAtt": [queue, "Arn"]}}
    assert target["RetryPolicy"] == {"MaximumEventAgeInSeconds": 60, "MaximumRetryAttempts": 2}
    assert properties["SqsManagedSseEnabled"] is True
    assert properties["MessageRetentionPeriod"] == 14 * 86_400


def test_only_the_rule_may_put_into_the_queue_and_only_over_tls(each: Assembly) -> None:
    statements = each.only(STACK, "AWS::SQS::QueuePolicy")["PolicyDocument"]["Statement"]
    (denied,) = (statement for statement in statements if statement["Effect"] == "Deny")
    assert denied["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    (allowed,) = (statement for statement in statements if statement["Effect"] == "Allow")
    (rule,) = each.resources(STACK, "AWS::Events::Rule")
    assert allowed["Action"] == "sqs:SendMessage"
    assert allowed["Principal"] == {"Service": "events.amazonaws.com"}
    assert allowed["Condition"] == {"ArnEquals": {"aws:SourceArn": {"Fn::GetAtt": [rule, "Arn"]}}}


def test_a_failed_run_is_not_repeated_before_the_next_one(each: Assembly) -> None:
    """Lambda would repeat it twice, beside the runs of the next minutes."""
    config = each.only(STACK, "AWS::Lambda::EventInvokeConfig")
    assert (config["MaximumRetryAttempts"], config["MaximumEventAgeInSeconds"]) == (0, 60)
    assert config["FunctionName"] == {"Ref": each.logical_id(SERVICE, STACK)}
    assert "DestinationConfig" not in config


def test_the_alarm_watches_this_queue(prod: Assembly) -> None:
    alarms = prod.resources("Monitoring", "AWS::CloudWatch::Alarm").values()
    (alarm,) = (alarm for alarm in alarms if "Undelivered" in alarm["AlarmName"])
    (metric,) = alarm["Metrics"]
    (dimension,) = metric["MetricStat"]["Metric"]["Dimensions"]
    (queue,) = prod.resources(STACK, QUEUE)
    assert prod.exported(STACK, dimension["Value"]) == {"Fn::GetAtt": [queue, "QueueName"]}


def test_the_output_that_tests_read(each: Assembly) -> None:
    output = each.raw(STACK)["Outputs"]["RollupFunctionName"]
    assert output["Value"] == {"Ref": each.logical_id(SERVICE, STACK)}
