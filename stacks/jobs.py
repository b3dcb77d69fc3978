"""What runs by itself: the scheduled function and its clock."""

from typing import Final, cast

import aws_cdk as cdk
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from sluice.repository import schema
from stacks.acceptances import accept
from stacks.data import DataStack
from stacks.function import FunctionSpec, ServiceFunction
from stacks.layers import ServiceLayers
from stacks.registry import let_only_remove_clients
from stacks.settings import Settings

# It works for 40 s; the rest is for the step that has begun.
_TIMEOUT_SECONDS: Final = 60
_EVERY: Final = cdk.Duration.minutes(1)
# The next one comes in a minute, so none is worth waiting for longer.
_EVENT_AGE: Final = cdk.Duration.minutes(1)
_DELIVERIES: Final = 2
_UNDELIVERED_KEPT: Final = cdk.Duration.days(14)
_IS_A_DEAD_LETTER_QUEUE: Final = (
    "It is the dead-letter queue of the rule's target, which the check does not see: what lies in it is looked at by a "
    "person, whom an alarm tells."
)
# As `sluice.repository.archive` names what it removes.
_ARCHIVED: Final = "archive/ns=*"
_ANY_NAMESPACE: Final = (
    "Object versions below archive/ may be removed, and nothing else in the bucket: which namespace is purged next is "
    "not known when the stack is deployed. Objects can be neither read nor written."
)
_PRICE_LIST: Final = {"pricing:GetProducts": "reads AWS's public price list once a day"}
_ROLLUP_ACTIONS: Final = (
    "dynamodb:BatchGetItem",
    "dynamodb:ConditionCheckItem",
    "dynamodb:DeleteItem",
    "dynamodb:GetItem",
    "dynamodb:PutItem",
    "dynamodb:Query",
    "dynamodb:Scan",
    "dynamodb:UpdateItem",
)
# Open jobs, totals that are due and apps; and everything of a namespace.
_ROLLUP_INDEXES: Final = (schema.GSI3, schema.GSI4)


class JobsStack(cdk.Stack):
    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        settings: Settings,
        data: DataStack,
    ) -> None:
        super().__init__(scope, construct_id, description="Sluice: the scheduled function")
        aged = [secret.arn for secret in (data.secrets.signing, data.secrets.token, data.secrets.operator)]
        self.rollup = ServiceFunction(
            self,
            "Rollup",
            settings=settings,
            layers=ServiceLayers(self, "Layers", settings=settings),
            spec=FunctionSpec(
                name="rollup",
                description="Totals that are due and open jobs, every minute",
                timeout_seconds=_TIMEOUT_SECONDS,
                environment={
                    "SLUICE_TABLE": data.table.table_name,
                    "SLUICE_STORE_TIMEOUT_MS": str(settings.store_timeout_ms),
                    "SLUICE_ARCHIVE_BUCKET": data.archive.bucket_name,
                    "SLUICE_AGED_SECRETS": ",".join(aged),
                    "SLUICE_PRICING_REGION": settings.pricing_region or "",
                },
                everywhere={} if settings.pricing_region is None else _PRICE_LIST,
                # Two would do the same steps twice.
                reserved_concurrency=1,
            ),
        )
        self._allow_table(data)
        self._allow_emptying(data)
        # Their age and never their value.
        self.rollup.allow(["secretsmanager:DescribeSecret"], aged)
        self.undelivered = sqs.Queue(
            self,
            "Undelivered",
            encryption=sqs.QueueEncryption.SQS_MANAGED,
            enforce_ssl=True,
            retention_period=_UNDELIVERED_KEPT,
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )
        accept(self.undelivered, "AwsSolutions-SQS3", _IS_A_DEAD_LETTER_QUEUE)
        self._schedule()
        cdk.CfnOutput(self, "RollupFunctionName", value=self.rollup.function.function_name)

    def _allow_table(self, data: DataStack) -> None:
        arn = data.table.table_arn
        self.rollup.allow(_ROLLUP_ACTIONS, [arn])
        self.rollup.allow(["dynamodb:Query"], [f"{arn}/index/{index}" for index in _ROLLUP_INDEXES])
        let_only_remove_clients(self.rollup, data.table)
        if data.key is not None:
            self.rollup.allow_key_through_table(data.key)

    def _allow_emptying(self, data: DataStack) -> None:
        """The purge removes a namespace's part of the archive, version by version, and reads none of it."""
        bucket = data.archive.bucket_arn
        below = {"StringLike": {"s3:prefix": [_ARCHIVED]}}
        self.rollup.allow(["s3:ListBucketVersions"], [bucket], conditions=below)
        self.rollup.allow(["s3:DeleteObjectVersion"], [f"{bucket}/{_ARCHIVED}"])
        # The finding names the bucket as the template does, by the other stack's export.
        exported: str = self.resolve(data.export_value(bucket))["Fn::ImportValue"]
        policy = self.rollup.role.node.find_child("DefaultPolicy")
        accept(policy, f"AwsSolutions-IAM5[Resource::{exported}/{_ARCHIVED}]", _ANY_NAMESPACE)

    def _schedule(self) -> None:
        alias = self.rollup.alias
        # A run that failed is not repeated: the next one goes on from the same cursors.
        alias.configure_async_invoke(max_event_age=_EVENT_AGE, retry_attempts=0)
        target = targets.LambdaFunction(
            cast("lambda_.IFunction", alias),
            dead_letter_queue=cast("sqs.IQueue", self.undelivered),
            max_event_age=_EVENT_AGE,
            retry_attempts=_DELIVERIES,
        )
        events.Rule(
            self,
            "EveryMinute",
            description="Starts the rollup function",
            schedule=events.Schedule.rate(_EVERY),
            targets=[cast("events.IRuleTarget", target)],
        )
