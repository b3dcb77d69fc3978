"""The functions of the stream: what reaches each, what each may do, and what happens to what it gives up on."""

import json
from typing import Any

import pytest

from sluice.core.archiving import ARCHIVED_TYPES
from sluice.repository import keys
from sluice.repository.alert_bus import SOURCE
from sluice.repository.alert_markers import ALERT_MARKER
from sluice.repository.archive import archive_prefix
from sluice.repository.audit import AUDIT
from sluice.repository.counters import COST_SHARD
from sluice.repository.events import USAGE_EVENT
from sluice.repository.items import BUCKET
from sluice.repository.ledger_items import LEDGER
from sluice.repository.namespaces import Namespace, NamespaceState, create_writes
from sluice.repository.snapshots import SNAPSHOT
from sluice.repository.totals import DAILY_TOTAL
from tests.infrastructure.assembly import Assembly, Properties
from tests.infrastructure.test_functions import (
    KEY_ACTIONS,
    LOG_ACTIONS,
    NO_CLIENT_READS,
    NO_REGISTRY_WRITES,
    OBJECT_ACTIONS,
    TRACE_ACTIONS,
    actions_of,
    allowed,
    denials,
)
from tests.infrastructure.test_jobs import archive_name

STACK = "Streams"
SERVICES = ("aggregator", "archiver")
CONSTRUCTS = {"aggregator": "Aggregator", "archiver": "Archiver"}
STREAM_ACTIONS = {
    "dynamodb:DescribeStream",
    "dynamodb:GetRecords",
    "dynamodb:GetShardIterator",
    "dynamodb:ListStreams",
}
QUEUE_ACTIONS = {"sqs:SendMessage"}
BUS_ACTIONS = {"events:PutEvents"}
TOPIC_ACTIONS = {"sns:Publish"}
OBJECT_KEY_ACTIONS = {"kms:Decrypt", "kms:GenerateDataKey"}
TABLE_ACTIONS = {
    "aggregator": {
        "dynamodb:BatchGetItem",
        "dynamodb:GetItem",
        "dynamodb:PutItem",
        "dynamodb:Query",
        "dynamodb:UpdateItem",
    },
    "archiver": {"dynamodb:GetItem"},
}
DELIVERED: dict[str, list[Any]] = {
    "aggregator": [
        {"dynamodb": {"NewImage": {"kind": {"S": ["bucket", "cost_shard", "ledger"]}}}},
        {"dynamodb": {"OldImage": {"kind": {"S": ["bucket"]}}}},
        {"eventName": ["INSERT"], "dynamodb": {"NewImage": {"kind": {"S": ["alert_marker"]}}}},
    ],
    "archiver": [
        {"eventName": ["INSERT"], "dynamodb": {"NewImage": {"kind": {"S": ["audit", "usage_event"]}}}},
        {
            "eventName": ["REMOVE"],
            "userIdentity": {"principalId": ["dynamodb.amazonaws.com"]},
            "dynamodb": {"OldImage": {"kind": {"S": ["snapshot", "daily_total"]}}},
        },
    ],
}
# Records of a batch, seconds that a record may wait for others, batches of a shard at once.
BATCHES = {"aggregator": (100, 1, 4), "archiver": (1_000, 60, 1)}


def source_of(assembly: Assembly, service: str) -> Properties:
    sources = assembly.resources(STACK, "AWS::Lambda::EventSourceMapping")
    (found,) = (source for name, source in sources.items() if name.startswith(f"{CONSTRUCTS[service]}Source"))
    return found


def policy_of(assembly: Assembly, service: str) -> Properties:
    role, _ = assembly.functions(STACK)[service]["Role"]["Fn::GetAtt"]
    policies = assembly.resources(STACK, "AWS::IAM::Policy").values()
    (policy,) = (policy for policy in policies if policy["Roles"] == [{"Ref": role}])
    return policy


def permissions(assembly: Assembly, service: str) -> dict[frozenset[str], Any]:
    statements = allowed(policy_of(assembly, service))
    found = {frozenset(actions_of(statement)): statement for statement in statements}
    assert len(found) == len(statements)
    return found


def stream_of(assembly: Assembly) -> dict[str, Any]:
    (table,) = assembly.resources("Data", "AWS::DynamoDB::GlobalTable")
    return {"Fn::GetAtt": [table, "StreamArn"]}


def queue_of(assembly: Assembly, service: str) -> str:
    queues = assembly.resources(STACK, "AWS::SQS::Queue")
    (name,) = (name for name in queues if name.startswith(f"{CONSTRUCTS[service]}Failures"))
    return name


def test_the_functions_are_these(each: Assembly) -> None:
    assert each.functions(STACK).keys() == set(SERVICES)
    assert len(each.resources(STACK, "AWS::Lambda::EventSourceMapping")) == len(SERVICES)


@pytest.mark.parametrize("service", SERVICES)
def test_permissions_are_exactly_these(each: Assembly, service: str) -> None:
    found = permissions(each, service)
    expected = [TABLE_ACTIONS[service], STREAM_ACTIONS, QUEUE_ACTIONS, TRACE_ACTIONS, LOG_ACTIONS]
    expected += [OBJECT_ACTIONS] if service == "archiver" else [BUS_ACTIONS, TOPIC_ACTIONS]
    if each.settings.customer_managed_key:
        expected += [KEY_ACTIONS, *([OBJECT_KEY_ACTIONS] if service == "archiver" else [])]
    assert found.keys() == {frozenset(actions) for actions in expected}
    (table,) = each.resources("Data", "AWS::DynamoDB::GlobalTable")
    assert each.exported("Data", found[frozenset(TABLE_ACTIONS[service])]["Resource"]) == {"Fn::GetAtt": [table, "Arn"]}
    assert each.exported("Data", found[frozenset(STREAM_ACTIONS)]["Resource"]) == stream_of(each)
    assert found[frozenset(QUEUE_ACTIONS)]["Resource"] == {"Fn::GetAtt": [queue_of(each, service), "Arn"]}
    if each.settings.customer_managed_key:
        condition = found[frozenset(KEY_ACTIONS)]["Condition"]["StringEquals"]
        assert condition["kms:ViaService"]["Fn::Join"][1][0] == "dynamodb."


def test_the_aggregator_keeps_away_from_the_registry(each: Assembly) -> None:
    assert denials(each, policy_of(each, "aggregator")) == [NO_REGISTRY_WRITES, NO_CLIENT_READS]


def test_the_aggregator_tells_of_alerts_and_of_nothing_else(each: Assembly) -> None:
    found = permissions(each, "aggregator")
    (topic,) = each.resources(STACK, "AWS::SNS::Topic")
    assert found[frozenset(TOPIC_ACTIONS)]["Resource"] == {"Ref": topic}
    assert each.functions(STACK)["aggregator"]["Environment"]["Variables"]["SLUICE_ALERT_TOPIC"] == {"Ref": topic}
    bus = found[frozenset(BUS_ACTIONS)]
    assert bus["Resource"]["Fn::Join"][1][-1] == ":event-bus/default"
    assert bus["Condition"] == {"StringEquals": {"events:source": SOURCE}}
    assert DELIVERED["aggregator"][2]["dynamodb"]["NewImage"]["kind"]["S"] == [ALERT_MARKER]


def test_alerts_are_kept_only_where_nobody_subscribes(each: Assembly) -> None:
    assert each.settings.alert_queue == (each.settings.name == "local")
    queues = {name for name in each.resources(STACK, "AWS::SQS::Queue") if name.startswith("AlertQueue")}
    subscriptions = each.resources(STACK, "AWS::SNS::Subscription")
    rules = each.resources(STACK, "AWS::Events::Rule")
    assert len(queues) == len(subscriptions) == len(rules) == int(each.settings.alert_queue)
    for queue in queues:
        arn = {"Fn::GetAtt": [queue, "Arn"]}
        (topic,) = each.resources(STACK, "AWS::SNS::Topic")
        (subscription,), (rule,) = subscriptions.values(), rules.values()
        assert (subscription["TopicArn"], subscription["Endpoint"]) == ({"Ref": topic}, arn)
        assert subscription["RawMessageDelivery"] is True
        assert rule["EventPattern"] == {"source": [SOURCE]}
        assert [target["Arn"] for target in rule["Targets"]] == [arn]
        assert each.raw(STACK)["Outputs"]["AlertQueueUrl"]["Value"] == {"Ref": queue}
        policies = each.resources(STACK, "AWS::SQS::QueuePolicy").values()
        (policy,) = (policy for policy in policies if policy["Queues"] == [{"Ref": queue}])
        senders = {
            statement["Principal"]["Service"]
            for statement in policy["PolicyDocument"]["Statement"]
            if statement["Effect"] == "Allow"
        }
        assert senders == {"sns.amazonaws.com", "events.amazonaws.com"}


def test_the_archiver_reads_namespaces_and_nothing_else_of_the_table(each: Assembly) -> None:
    statement = permissions(each, "archiver")[frozenset(TABLE_ACTIONS["archiver"])]
    assert statement["Condition"] == {"ForAllValues:StringEquals": {"dynamodb:LeadingKeys": ["_/SYSTEM#"]}}
    namespace = Namespace("name", "ns", NamespaceState.ACTIVE, None, 1, 1)
    assert {write["Put"]["Item"]["PK"] for write in create_writes(namespace)} == {"_/SYSTEM#"}
    assert keys.client("x").pk != "_/SYSTEM#"


def test_the_archiver_writes_below_the_namespaces_and_reads_nothing_back(each: Assembly) -> None:
    found = permissions(each, "archiver")
    bucket = {"Fn::GetAtt": [archive_name(each), "Arn"]}
    start, end = found[frozenset(OBJECT_ACTIONS)]["Resource"]["Fn::Join"][1]
    assert (each.exported("Data", start), end) == (bucket, "/archive/ns=*")
    assert archive_prefix("x").startswith("archive/ns=")
    variables = each.functions(STACK)["archiver"]["Environment"]["Variables"]
    assert each.exported("Data", variables["SLUICE_ARCHIVE_BUCKET"]) == {"Ref": archive_name(each)}
    if each.settings.customer_managed_key:
        condition = found[frozenset(OBJECT_KEY_ACTIONS)]["Condition"]["StringEquals"]
        assert condition["kms:ViaService"]["Fn::Join"][1][0] == "s3."
        assert each.exported("Data", condition["kms:EncryptionContext:aws:s3:arn"]) == bucket


@pytest.mark.parametrize("service", SERVICES)
def test_only_records_that_it_is_for_reach_a_function(each: Assembly, service: str) -> None:
    filters = source_of(each, service)["FilterCriteria"]["Filters"]
    assert [json.loads(one["Pattern"]) for one in filters] == DELIVERED[service]


def test_the_kinds_are_those_of_the_items() -> None:
    assert DELIVERED["aggregator"][0]["dynamodb"]["NewImage"]["kind"]["S"] == [BUCKET, COST_SHARD, LEDGER]
    assert DELIVERED["aggregator"][1]["dynamodb"]["OldImage"]["kind"]["S"] == [BUCKET]
    when_written, when_expired = DELIVERED["archiver"]
    assert when_written["dynamodb"]["NewImage"]["kind"]["S"] == [AUDIT, USAGE_EVENT]
    assert when_expired["dynamodb"]["OldImage"]["kind"]["S"] == [SNAPSHOT, DAILY_TOTAL]


@pytest.mark.parametrize("service", SERVICES)
def test_a_batch(each: Assembly, service: str) -> None:
    source = source_of(each, service)
    sizes = ("BatchSize", "MaximumBatchingWindowInSeconds", "ParallelizationFactor")
    assert tuple(source[name] for name in sizes) == BATCHES[service]
    assert each.exported("Data", source["EventSourceArn"]) == stream_of(each)
    assert source["StartingPosition"] == "TRIM_HORIZON"
    # The published version, under its alias.
    alias, properties = each.alias(service, STACK)
    assert f'"Ref": "{alias}"' in json.dumps(source["FunctionName"])
    assert json.dumps(source["FunctionName"]).endswith(f'":{properties["Name"]}"]]}}')


@pytest.mark.parametrize("service", SERVICES)
def test_a_batch_that_fails(each: Assembly, service: str) -> None:
    source = source_of(each, service)
    assert source["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    assert source["BisectBatchOnFunctionError"] is True
    assert (source["MaximumRetryAttempts"], source["MaximumRecordAgeInSeconds"]) == (100, 6 * 3_600)
    queue = queue_of(each, service)
    assert source["DestinationConfig"] == {"OnFailure": {"Destination": {"Fn::GetAtt": [queue, "Arn"]}}}
    properties = each.resources(STACK, "AWS::SQS::Queue")[queue]
    assert (properties["SqsManagedSseEnabled"], properties["MessageRetentionPeriod"]) == (True, 14 * 86_400)
    policies = each.resources(STACK, "AWS::SQS::QueuePolicy").values()
    (policy,) = (policy for policy in policies if policy["Queues"] == [{"Ref": queue}])
    (denied,) = policy["PolicyDocument"]["Statement"]
    assert (denied["Effect"], denied["Condition"]) == ("Deny", {"Bool": {"aws:SecureTransport": "false"}})


@pytest.mark.parametrize("service", SERVICES)
def test_the_queue_is_found_by_its_output(each: Assembly, service: str) -> None:
    """`make redrive` wants its address."""
    output = each.raw(STACK)["Outputs"][f"{CONSTRUCTS[service]}FailuresUrl"]
    assert output["Value"] == {"Ref": queue_of(each, service)}


@pytest.mark.parametrize("service", SERVICES)
def test_a_source_is_made_when_the_role_may_read_the_stream(each: Assembly, service: str) -> None:
    resources = each.raw(STACK)["Resources"]
    (source,) = (r for name, r in resources.items() if name.startswith(f"{CONSTRUCTS[service]}Source"))
    (policy,) = (name for name in resources if name.startswith(f"{CONSTRUCTS[service]}RoleDefaultPolicy"))
    assert source["DependsOn"] == [policy]


@pytest.mark.parametrize("service", SERVICES)
def test_it_ends_before_a_purge_believes_that_everybody_has_noticed(each: Assembly, service: str) -> None:
    assert each.functions(STACK)[service]["Timeout"] == 60


@pytest.mark.parametrize("service", SERVICES)
def test_the_deployed_code_holds_the_handler_and_no_other_function(each: Assembly, service: str) -> None:
    digest = each.functions(STACK)[service]["Code"]["S3Key"].removesuffix(".zip")
    asset = each.folder / f"asset.{digest}"
    assert [path.name for path in asset.iterdir()] == [service]
    assert (asset / service / "handler.py").is_file()


def test_layers_are_its_stacks_own(each: Assembly) -> None:
    for function in each.functions(STACK).values():
        layers = {layer["Ref"] for layer in function["Layers"]}
        assert layers == set(each.resources(STACK, "AWS::Lambda::LayerVersion"))


def test_the_archive_is_a_table_where_the_settings_say_so(each: Assembly) -> None:
    assert each.settings.analytics == (each.settings.name in {"staging", "prod"})
    tables = each.resources(STACK, "AWS::Glue::Table")
    assert len(tables) == len(each.resources(STACK, "AWS::Glue::Database")) == int(each.settings.analytics)
    for table in tables.values():
        content = table["TableInput"]
        assert [key["Name"] for key in content["PartitionKeys"]] == ["ns", "type", "dt"]
        projection = content["Parameters"]
        assert projection["projection.ns.type"] == "injected"
        assert projection["projection.type.values"] == ",".join(ARCHIVED_TYPES)
        start, bucket, end = projection["storage.location.template"]["Fn::Join"][1]
        assert (start, each.exported("Data", bucket)) == ("s3://", {"Ref": archive_name(each)})
        assert end == "/archive/ns=${ns}/type=${type}/dt=${dt}"
        (database,) = each.resources(STACK, "AWS::Glue::Database")
        assert table["DatabaseName"] == {"Ref": database}
        assert each.only(STACK, "AWS::Glue::Database")["DatabaseInput"]["Name"] == f"sluice_{each.settings.name}"
