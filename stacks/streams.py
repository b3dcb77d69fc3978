"""What follows the table's stream: one function counts usage, marks totals and splits busy shards, one archives.

Each has an event source of its own, so that neither waits for the other; two are as many as a stream serves well.
Filters keep the records out that a function is not for: they are neither delivered nor paid.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import aws_cdk as cdk
import jsii
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from sluice.core.archiving import ARCHIVED_WHEN_EXPIRED, ARCHIVED_WHEN_WRITTEN, INSERT, REMOVE, TTL_SERVICE
from stacks.acceptances import accept
from stacks.catalog import ArchiveCatalog
from stacks.data import DataStack
from stacks.function import FunctionSpec, ServiceFunction
from stacks.layers import ServiceLayers
from stacks.registry import keep_from_reading_clients, keep_from_writing_registry
from stacks.settings import Settings

# With the time for which a namespace may be cached as active, less than the two minutes that a purge waits.
_TIMEOUT_SECONDS: Final = 60
# Whichever comes first gives up on a record. Hours leave time for a redrive, for which the stream keeps records for a
# day. Attempts that fail fast are soon used up, and a record that always fails holds up those behind it for as long.
_RECORD_AGE: Final = cdk.Duration.hours(6)
_RETRIES: Final = 100
_FAILURES_KEPT: Final = cdk.Duration.days(14)
_ALERTS_KEPT: Final = cdk.Duration.days(1)
_STREAM_ACTIONS: Final = (
    "dynamodb:DescribeStream",
    "dynamodb:GetRecords",
    "dynamodb:GetShardIterator",
    "dynamodb:ListStreams",
)
# Snapshots are read and updated, earlier ones queried; totals are marked; a split updates one shard, puts the other.
_AGGREGATOR_ACTIONS: Final = (
    "dynamodb:BatchGetItem",
    "dynamodb:GetItem",
    "dynamodb:PutItem",
    "dynamodb:Query",
    "dynamodb:UpdateItem",
)
# As `sluice.repository.items` names what is counted, `sluice.repository.counters` what is marked, and
# `sluice.repository.keys` where the namespaces stand. What the stream tells of the removal of a bucket is counted; a
# counter that was removed has expired, and its total stays.
_COUNTED: Final = "bucket"
_MARKED: Final = "cost_shard"
# As `sluice.repository.ledger_items` and `alert_markers` name them.
_LEDGER: Final = "ledger"
_ALERT: Final = "alert_marker"
_NAMESPACES: Final = "_/SYSTEM#"
# As `sluice.repository.alert_bus` names itself.
_SOURCE: Final = "sluice"
# As `sluice.repository.archive` names what it writes.
_ARCHIVED: Final = "archive/ns=*"
_ANY_NAMESPACE: Final = (
    "Objects below archive/ may be written, and nothing else in the bucket: whose records come next is not known when "
    "the stack is deployed. Objects can be neither read nor removed."
)
_IS_A_FAILURE_QUEUE: Final = (
    "It is the failure destination of an event source, which the check does not see: what lies in it is driven again "
    "by a person, whom an alarm tells."
)
_IS_ONLY_LOOKED_AT: Final = (
    "Alerts lie here for whoever looks, in environments without data of value. Nothing works on them, so nothing can "
    "fail again and again."
)

Pattern = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Delivery:
    """How the stream reaches a function. `patterns`: a record that fits one of them is delivered."""

    patterns: Sequence[Pattern]
    batch_size: int
    window: cdk.Duration
    # Batches of one shard at a time. Records of one item are never in two of them.
    parallelization: int


def _of_kind(image: str, kinds: Sequence[str]) -> dict[str, Any]:
    return {"dynamodb": {image: {"kind": {"S": list(kinds)}}}}


_TO_AGGREGATOR: Final = _Delivery(
    patterns=[
        _of_kind("NewImage", (_COUNTED, _MARKED, _LEDGER)),
        _of_kind("OldImage", (_COUNTED,)),
        {"eventName": [INSERT], **_of_kind("NewImage", (_ALERT,))},
    ],
    batch_size=100,
    window=cdk.Duration.seconds(1),
    parallelization=4,
)
_TO_ARCHIVER: Final = _Delivery(
    patterns=[
        {"eventName": [INSERT], **_of_kind("NewImage", ARCHIVED_WHEN_WRITTEN)},
        {
            "eventName": [REMOVE],
            "userIdentity": {"principalId": [TTL_SERVICE]},
            **_of_kind("OldImage", ARCHIVED_WHEN_EXPIRED),
        },
    ],
    batch_size=1_000,
    # As long as a line may wait for others to share its object.
    window=cdk.Duration.seconds(60),
    parallelization=1,
)


@jsii.implements(lambda_.IEventSourceDlq)
class _FailureQueue:
    """The library's own also lets the function look at the queue."""

    def __init__(self, queue: sqs.Queue) -> None:
        self._queue = queue

    def bind(
        self, _target: lambda_.IEventSourceMapping, _target_handler: lambda_.IFunction
    ) -> lambda_.DlqDestinationConfig:
        return lambda_.DlqDestinationConfig(destination=self._queue.queue_arn)


class StreamsStack(cdk.Stack):
    def __init__(self, scope: Construct, construct_id: str, *, settings: Settings, data: DataStack) -> None:
        super().__init__(scope, construct_id, description="Sluice: what follows the table's stream")
        self._settings = settings
        self._data = data
        self._layers = ServiceLayers(self, "Layers", settings=settings)
        self.alerts = self._alert_topic()
        if settings.alert_queue:
            self._keep_alerts()
        self.aggregator = self._aggregator()
        self.aggregator_failures = self._deliver(self.aggregator, _TO_AGGREGATOR)
        self.archiver = self._archiver()
        self.archiver_failures = self._deliver(self.archiver, _TO_ARCHIVER)
        if settings.analytics:
            ArchiveCatalog(self, "Catalog", settings=settings, archive=data.archive)

    def _alert_topic(self) -> sns.Topic:
        """Whoever subscribes is told of all budgets of all orgs: it is the operator's. Encrypted with AWS's own key."""
        key = kms.Alias.from_alias_name(self, "TopicKey", "alias/aws/sns")
        topic = sns.Topic(self, "Alerts", master_key=cast("kms.IKey", key), enforce_ssl=True)
        cdk.CfnOutput(self, "AlertTopicArn", value=topic.topic_arn)
        return topic

    def _keep_alerts(self) -> None:
        """What was told on either way: from the topic the alert itself, from the bus its event around it."""
        queue = sqs.Queue(
            self,
            "AlertQueue",
            encryption=sqs.QueueEncryption.SQS_MANAGED,
            enforce_ssl=True,
            retention_period=_ALERTS_KEPT,
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )
        accept(queue, "AwsSolutions-SQS3", _IS_ONLY_LOOKED_AT)
        destination = cast("sqs.IQueue", queue)
        by_topic = subscriptions.SqsSubscription(destination, raw_message_delivery=True)
        self.alerts.add_subscription(cast("sns.ITopicSubscription", by_topic))
        by_bus = cast("events.IRuleTarget", targets.SqsQueue(destination))
        events.Rule(self, "AlertRule", event_pattern=events.EventPattern(source=[_SOURCE]), targets=[by_bus])
        cdk.CfnOutput(self, "AlertQueueUrl", value=queue.queue_url)

    def _aggregator(self) -> ServiceFunction:
        function = self._function(
            "Aggregator",
            "aggregator",
            "Usage of buckets, and their growth; totals that are due; alerts of budgets",
            {"SLUICE_ALERT_TOPIC": self.alerts.topic_arn},
        )
        bus = self.format_arn(service="events", resource="event-bus", resource_name="default")
        only_ours = {"StringEquals": {"events:source": _SOURCE}}
        function.allow(["events:PutEvents"], [bus], conditions=only_ours)
        function.allow(["sns:Publish"], [self.alerts.topic_arn])
        function.allow(_AGGREGATOR_ACTIONS, [self._data.table.table_arn])
        keep_from_writing_registry(function, self._data.table)
        keep_from_reading_clients(function, self._data.table)
        return function

    def _archiver(self) -> ServiceFunction:
        data = self._data
        bucket = data.archive.bucket_arn
        variables = {"SLUICE_ARCHIVE_BUCKET": data.archive.bucket_name}
        function = self._function("Archiver", "archiver", "Events and expired counters, to the archive", variables)
        # Whether a namespace is active, and nothing else of the table.
        registry = {"ForAllValues:StringEquals": {"dynamodb:LeadingKeys": [_NAMESPACES]}}
        function.allow(["dynamodb:GetItem"], [data.table.table_arn], conditions=registry)
        # The second is for a large object that fails half way.
        function.allow(["s3:PutObject", "s3:AbortMultipartUpload"], [f"{bucket}/{_ARCHIVED}"])
        if data.key is not None:
            through_bucket = {
                "StringEquals": {
                    "kms:ViaService": f"s3.{self.region}.amazonaws.com",
                    "kms:EncryptionContext:aws:s3:arn": bucket,
                }
            }
            # Decrypt: the parts of a large object are put together under one data key.
            function.allow(["kms:Decrypt", "kms:GenerateDataKey"], [data.key.key_arn], conditions=through_bucket)
        # The finding names the bucket as the template does, by the other stack's export.
        exported: str = self.resolve(data.export_value(bucket))["Fn::ImportValue"]
        policy = function.role.node.find_child("DefaultPolicy")
        accept(policy, f"AwsSolutions-IAM5[Resource::{exported}/{_ARCHIVED}]", _ANY_NAMESPACE)
        return function

    def _function(
        self, construct_id: str, name: str, description: str, variables: Mapping[str, str]
    ) -> ServiceFunction:
        function = ServiceFunction(
            self,
            construct_id,
            settings=self._settings,
            layers=self._layers,
            spec=FunctionSpec(
                name=name,
                description=description,
                timeout_seconds=_TIMEOUT_SECONDS,
                environment={
                    "SLUICE_TABLE": self._data.table.table_name,
                    "SLUICE_STORE_TIMEOUT_MS": str(self._settings.store_timeout_ms),
                    **variables,
                },
            ),
        )
        if self._data.key is not None:
            function.allow_key_through_table(self._data.key)
        return function

    def _deliver(self, function: ServiceFunction, delivery: _Delivery) -> sqs.Queue:
        """What a function gives up on is named in a queue: where it stands in the stream, not the records."""
        name = function.node.id
        failures = self._failures(name)
        stream = cast("str", self._data.table.table_stream_arn)
        function.allow(_STREAM_ACTIONS, [stream])
        function.allow(["sqs:SendMessage"], [failures.queue_arn])
        source = lambda_.EventSourceMapping(
            self,
            f"{name}Source",
            target=cast("lambda_.IFunction", function.alias),
            event_source_arn=stream,
            # What was written before the first deployment of this stack is followed too, as far as it is kept.
            starting_position=lambda_.StartingPosition.TRIM_HORIZON,
            filters=[{"pattern": json.dumps(pattern)} for pattern in delivery.patterns],
            batch_size=delivery.batch_size,
            max_batching_window=delivery.window,
            parallelization_factor=delivery.parallelization,
            report_batch_item_failures=True,
            bisect_batch_on_error=True,
            retry_attempts=_RETRIES,
            max_record_age=_RECORD_AGE,
            on_failure=cast("lambda_.IEventSourceDlq", _FailureQueue(failures)),
        )
        # Lambda tries the rights when it makes the source.
        source.node.add_dependency(cast("iam.Policy", function.role.node.find_child("DefaultPolicy")))
        cdk.CfnOutput(self, f"{name}FailuresUrl", value=failures.queue_url)
        cdk.CfnOutput(self, f"{name}FunctionName", value=function.function.function_name)
        return failures

    def _failures(self, name: str) -> sqs.Queue:
        queue = sqs.Queue(
            self,
            f"{name}Failures",
            encryption=sqs.QueueEncryption.SQS_MANAGED,
            enforce_ssl=True,
            retention_period=_FAILURES_KEPT,
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )
        accept(queue, "AwsSolutions-SQS3", _IS_A_FAILURE_QUEUE)
        return queue
