"""The HTTP API and the functions behind it."""

import json
from typing import Final, cast

import aws_cdk as cdk
import jsii
from aws_cdk import aws_apigatewayv2 as apigateway
from aws_cdk import aws_apigatewayv2_integrations as integrations
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from aws_cdk.aws_apigateway import AccessLogFormat
from constructs import Construct

from stacks.acceptances import accept
from stacks.function import FunctionSpec, ServiceFunction
from stacks.layers import ServiceLayers
from stacks.logs import log_group
from stacks.settings import Settings

_DATA_PLANE_TIMEOUT_SECONDS: Final = 15
# The table's verbs that an acquire uses. Queries of an index are the control plane's.
_DATA_PLANE_ACTIONS: Final = ("dynamodb:BatchGetItem", "dynamodb:GetItem", "dynamodb:PutItem", "dynamodb:UpdateItem")
_KEY_ACTIONS: Final = (
    "kms:Decrypt",
    "kms:DescribeKey",
    "kms:Encrypt",
    "kms:GenerateDataKey",
    "kms:ReEncryptFrom",
    "kms:ReEncryptTo",
)
# The route and never the path, no address, no header: nothing here names a tenant or a person.
_ACCESS_LOG_FIELDS: Final = {
    "request_id": "$context.requestId",
    "route": "$context.routeKey",
    "method": "$context.httpMethod",
    "status": "$context.status",
    "response_bytes": "$context.responseLength",
    "latency_ms": "$context.responseLatency",
    "integration_latency_ms": "$context.integrationLatency",
    "integration_status": "$context.integrationStatus",
    "error": "$context.error.responseType",
    "at": "$context.requestTime",
}


@jsii.implements(apigateway.IAccessLogSettings)
class _JsonAccessLog:
    def __init__(self, group: logs.LogGroup) -> None:
        self._group = group

    @property
    def destination(self) -> apigateway.IAccessLogDestination:
        destination = apigateway.LogGroupLogDestination(cast("logs.ILogGroup", self._group))
        return cast("apigateway.IAccessLogDestination", destination)

    @property
    def format(self) -> AccessLogFormat:
        return AccessLogFormat.custom(json.dumps(_ACCESS_LOG_FIELDS))


class ApiStack(cdk.Stack):
    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        settings: Settings,
        table: dynamodb.TableV2,
        key: kms.Key | None,
    ) -> None:
        super().__init__(
            scope,
            construct_id,
            description="Sluice: the HTTP API and its functions",
        )
        layers = ServiceLayers(self, "Layers", settings=settings)
        self.data_plane = self._data_plane(settings, layers, table, key)
        self.api = apigateway.HttpApi(
            self,
            "Api",
            api_name=settings.stack_name("Api"),
            description="Rate limits and budgets for LLM traffic",
            create_default_stage=False,
        )
        self._route_everything_to(self.data_plane)
        self._stage(settings)
        cdk.CfnOutput(self, "ApiId", value=self.api.api_id)
        cdk.CfnOutput(self, "ApiUrl", value=self.api.api_endpoint)

    def _data_plane(
        self, settings: Settings, layers: ServiceLayers, table: dynamodb.TableV2, key: kms.Key | None
    ) -> ServiceFunction:
        environment = {"SLUICE_TABLE": table.table_name, "SLUICE_STORE_TIMEOUT_MS": str(settings.store_timeout_ms)}
        if settings.open_namespace is not None:
            environment["SLUICE_OPEN_NAMESPACE"] = settings.open_namespace
        function = ServiceFunction(
            self,
            "DataPlane",
            settings=settings,
            layers=layers,
            spec=FunctionSpec(
                name="data_plane",
                description="Acquires, leases and usage",
                timeout_seconds=_DATA_PLANE_TIMEOUT_SECONDS,
                environment=environment,
            ),
        )
        function.allow(_DATA_PLANE_ACTIONS, [table.table_arn])
        if key is not None:
            # Only through the table: the function itself can neither read nor make anything with the key.
            via_table = {"StringEquals": {"kms:ViaService": f"dynamodb.{self.region}.amazonaws.com"}}
            function.allow(_KEY_ACTIONS, [key.key_arn], conditions=via_table)
        return function

    def _route_everything_to(self, function: ServiceFunction) -> None:
        """A path that nobody knows is answered by a function too, so that its refusal is a problem document."""
        integration = integrations.HttpLambdaIntegration(
            "DataPlaneIntegration",
            cast("lambda_.IFunction", function.alias),
            payload_format_version=apigateway.PayloadFormatVersion.VERSION_2_0,
        )
        route = apigateway.HttpRoute(
            self,
            "DefaultRoute",
            http_api=cast("apigateway.IHttpApi", self.api),
            route_key=apigateway.HttpRouteKey.DEFAULT,
            integration=integration,
        )
        accept(
            route,
            "AwsSolutions-APIG4",
            "There is no login yet: the data plane refuses every acquire unless the open_namespace setting names a "
            "namespace, which only the local environment and a private trial set. Tokens will be verified inside the "
            "function, because the refusals of an authorizer are not problem documents.",
        )

    def _stage(self, settings: Settings) -> None:
        access_log = log_group(self, "AccessLog", settings=settings)
        apigateway.HttpStage(
            self,
            "DefaultStage",
            http_api=cast("apigateway.IHttpApi", self.api),
            stage_name="$default",
            auto_deploy=True,
            throttle=apigateway.ThrottleSettings(
                rate_limit=settings.api_rate_per_second, burst_limit=settings.api_burst
            ),
            access_log_settings=cast("apigateway.IAccessLogSettings", _JsonAccessLog(access_log)),
        )
