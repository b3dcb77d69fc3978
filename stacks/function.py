"""The one way a function of Sluice is made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from constructs import Construct

from sluice.core.signals import METRICS_NAMESPACE
from stacks.acceptances import accept
from stacks.layers import ServiceLayers
from stacks.logs import log_group
from stacks.settings import Settings
from stacks.wheels import ROOT

ALIAS: Final = "live"
# What DynamoDB does with a customer's key on behalf of whoever uses the table.
_TABLE_KEY_ACTIONS: Final = (
    "kms:Decrypt",
    "kms:DescribeKey",
    "kms:Encrypt",
    "kms:GenerateDataKey",
    "kms:ReEncryptFrom",
    "kms:ReEncryptTo",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSpec:
    """What differs from one function to the next."""

    # The folder under lambdas/, and the service name in logs and metrics.
    name: str
    description: str
    timeout_seconds: int
    environment: Mapping[str, str]
    # Actions that IAM takes no resource for, and what each is for.
    everywhere: Mapping[str, str] = field(default_factory=dict)
    # How many may run at once; None leaves that to the account.
    reserved_concurrency: int | None = None


class ServiceFunction(Construct):
    """A function with its own role, log group and alias; callers use the alias, never the bare function."""

    def __init__(
        self, scope: Construct, construct_id: str, *, settings: Settings, layers: ServiceLayers, spec: FunctionSpec
    ) -> None:
        super().__init__(scope, construct_id)
        self.service_name = spec.name
        self.log_group: logs.LogGroup = log_group(self, "Logs", settings=settings)
        self.role = iam.Role(
            self,
            "Role",
            assumed_by=cast("iam.IPrincipal", iam.ServicePrincipal("lambda.amazonaws.com")),
            description=f"What the {spec.name} function may do, and nothing else",
        )
        self.allow(["logs:CreateLogStream", "logs:PutLogEvents"], [self.log_group.log_group_arn])
        self.function = lambda_.Function(
            self,
            "Function",
            description=spec.description,
            runtime=lambda_.Runtime.PYTHON_3_14,
            architecture=lambda_.Architecture.ARM_64,
            code=_code(spec.name),
            handler=f"{spec.name}.handler.handler",
            layers=layers.versions,
            role=cast("iam.IRole", self.role),
            memory_size=settings.memory_mb,
            timeout=cdk.Duration.seconds(spec.timeout_seconds),
            environment=_environment(spec, settings),
            tracing=lambda_.Tracing.ACTIVE,
            logging_format=lambda_.LoggingFormat.JSON,
            application_log_level_v2=lambda_.ApplicationLogLevel[settings.log_level],
            system_log_level_v2=lambda_.SystemLogLevel.WARN,
            log_group=cast("logs.ILogGroup", self.log_group),
            reserved_concurrent_executions=spec.reserved_concurrency,
            snap_start=lambda_.SnapStartConf.ON_PUBLISHED_VERSIONS if settings.snap_start else None,
        )
        self.alias = lambda_.Alias(
            self, "Alias", alias_name=ALIAS, version=cast("lambda_.IVersion", self.function.current_version)
        )
        if spec.everywhere:
            self.allow(sorted(spec.everywhere), ["*"])
        self._accept_everywhere(spec)
        cdk.Annotations.of(self.function).acknowledge_warning(
            "@aws-cdk/aws-lambda:snapStartRequirePublish", "The alias publishes a version, and callers use the alias."
        )

    def allow(
        self, actions: Sequence[str], resources: Sequence[str], *, conditions: Mapping[str, object] | None = None
    ) -> None:
        """Every permission is written out: the grant methods of CDK also open the table's indexes."""
        statement = iam.PolicyStatement(
            actions=list(actions), resources=list(resources), conditions=dict(conditions) if conditions else None
        )
        self.role.add_to_principal_policy(statement)

    def deny(self, actions: Sequence[str], resources: Sequence[str], *, conditions: Mapping[str, object]) -> None:
        """For what the code never does and a broader permission would let it do."""
        statement = iam.PolicyStatement(
            effect=iam.Effect.DENY, actions=list(actions), resources=list(resources), conditions=dict(conditions)
        )
        self.role.add_to_principal_policy(statement)

    def allow_key_through_table(self, key: kms.Key) -> None:
        """The function itself can neither read nor make anything with the key."""
        region = cdk.Stack.of(self).region
        via_table = {"StringEquals": {"kms:ViaService": f"dynamodb.{region}.amazonaws.com"}}
        self.allow(_TABLE_KEY_ACTIONS, [key.key_arn], conditions=via_table)

    def _accept_everywhere(self, spec: FunctionSpec) -> None:
        others = "".join(
            f" {action} {why}; it has no resource to name either." for action, why in spec.everywhere.items()
        )
        accept(
            self.role.node.find_child("DefaultPolicy"),
            "AwsSolutions-IAM5[Resource::*]",
            "xray:PutTraceSegments and xray:PutTelemetryRecords are for active tracing; X-Ray has no resource to "
            f"name, so IAM takes only * for them.{others} No other statement of this policy allows all resources.",
        )


def _code(folder: str) -> lambda_.Code:
    # Everything is ignored, then the one folder is let in again: a change in another function must not publish a
    # new version of this one.
    return lambda_.Code.from_asset(
        str(ROOT / "lambdas"),
        exclude=["*", f"!/{folder}/", f"!/{folder}/**", "__pycache__/", "*.pyc"],
        ignore_mode=cdk.IgnoreMode.GIT,
    )


def _environment(spec: FunctionSpec, settings: Settings) -> dict[str, str]:
    reserved = {
        "SLUICE_ENVIRONMENT": settings.name,
        "POWERTOOLS_SERVICE_NAME": spec.name,
        "POWERTOOLS_METRICS_NAMESPACE": METRICS_NAMESPACE,
        "POWERTOOLS_LOG_LEVEL": settings.log_level,
    }
    taken = reserved.keys() & spec.environment.keys()
    if taken:
        raise ValueError(f"{spec.name} may not set {', '.join(sorted(taken))}: every function has the same")
    return {**reserved, **spec.environment}
