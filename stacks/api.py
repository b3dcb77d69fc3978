"""The HTTP API and the functions behind it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
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

from sluice.repository import schema
from stacks.acceptances import accept
from stacks.function import FunctionSpec, ServiceFunction
from stacks.layers import ServiceLayers
from stacks.logs import log_group
from stacks.secrets import SigningSecret
from stacks.settings import Settings

# More than two of the store's time-outs, so that a call whose answer was lost can be repeated and still be answered by
# us; less than the 30 s after which the API gives up.
_TIMEOUT_SECONDS: Final = 15
# The table's verbs that each function uses, on the table itself.
# Deletes and queries: a bucket of an old layout is moved by whoever meets it.
_DATA_PLANE_ACTIONS: Final = (
    "dynamodb:BatchGetItem",
    "dynamodb:DeleteItem",
    "dynamodb:GetItem",
    "dynamodb:PutItem",
    "dynamodb:Query",
    "dynamodb:UpdateItem",
)
_CONTROL_PLANE_ACTIONS: Final = (
    "dynamodb:BatchGetItem",
    "dynamodb:ConditionCheckItem",
    "dynamodb:DeleteItem",
    "dynamodb:GetItem",
    "dynamodb:PutItem",
    "dynamodb:Query",
)
# Children of an entity, the buckets of a resource, every other list, and a namespace's jobs.
_CONTROL_PLANE_INDEXES: Final = (schema.GSI1, schema.GSI2, schema.GSI3, schema.GSI4)
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
_NO_LOGIN_YET: Final = (
    "There is no login yet: the function serves no namespace unless the open_namespace setting names one, which only "
    "the local environment and a private trial set. Tokens will be verified inside the function, because the refusals "
    "of an authorizer are not problem documents."
)
_OPEN_TO_PROBES: Final = (
    "Probes have no login. The answer says only whether the function or its table answers, nothing about a tenant, and "
    "the stage throttles its rate."
)


@dataclass(frozen=True, slots=True)
class _Route:
    construct_id: str
    path: str
    why_no_authorizer: str


# Every method of these paths is the data plane's, so that a wrong one is refused with the methods that exist. All other
# paths are the control plane's.
_DATA_PLANE_ROUTES: Final = (
    _Route("AcquireRoute", "/v1/acquire", _NO_LOGIN_YET),
    _Route("ExplainRoute", "/v1/explain", _NO_LOGIN_YET),
    _Route("SettleRoute", "/v1/leases/settle", _NO_LOGIN_YET),
    _Route("AdjustRoute", "/v1/leases/adjust", _NO_LOGIN_YET),
    _Route("ReleaseRoute", "/v1/leases/release", _NO_LOGIN_YET),
    _Route("HealthRoute", "/v1/health", _OPEN_TO_PROBES),
    _Route("ReadyRoute", "/v1/ready", _OPEN_TO_PROBES),
)


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
        signing_secret: SigningSecret,
    ) -> None:
        super().__init__(
            scope,
            construct_id,
            description="Sluice: the HTTP API and its functions",
        )
        self._settings = settings
        self._table = table
        self._key = key
        self._signing_secret = signing_secret
        self._layers = ServiceLayers(self, "Layers", settings=settings)
        self.data_plane = self._function("DataPlane", "data_plane", "Acquires, leases and probes", _DATA_PLANE_ACTIONS)
        self.control_plane = self._function(
            "ControlPlane", "control_plane", "Configuration, and every path that nobody knows", _CONTROL_PLANE_ACTIONS
        )
        indexes = [f"{table.table_arn}/index/{index}" for index in _CONTROL_PLANE_INDEXES]
        self.control_plane.allow(["dynamodb:Query"], indexes)
        self.api = apigateway.HttpApi(
            self,
            "Api",
            api_name=settings.stack_name("Api"),
            description="Rate limits and budgets for LLM traffic",
            create_default_stage=False,
        )
        self._routes()
        self._stage(settings)
        cdk.CfnOutput(self, "ApiId", value=self.api.api_id)
        cdk.CfnOutput(self, "ApiUrl", value=self.api.api_endpoint)

    def _function(
        self, construct_id: str, name: str, description: str, table_actions: Sequence[str]
    ) -> ServiceFunction:
        settings = self._settings
        environment = {
            "SLUICE_TABLE": self._table.table_name,
            "SLUICE_STORE_TIMEOUT_MS": str(settings.store_timeout_ms),
            "SLUICE_SIGNING_SECRET": self._signing_secret.arn,
        }
        if settings.open_namespace is not None:
            environment["SLUICE_OPEN_NAMESPACE"] = settings.open_namespace
        function = ServiceFunction(
            self,
            construct_id,
            settings=settings,
            layers=self._layers,
            spec=FunctionSpec(
                name=name, description=description, timeout_seconds=_TIMEOUT_SECONDS, environment=environment
            ),
        )
        function.allow(table_actions, [self._table.table_arn])
        if self._key is not None:
            function.allow_key_through_table(self._key)
        self._allow_secret(function)
        return function

    def _allow_secret(self, function: ServiceFunction) -> None:
        secret_arn = self._signing_secret.arn
        function.allow(["secretsmanager:GetSecretValue"], [secret_arn])
        if self._key is not None:
            via_secret = {
                "StringEquals": {
                    "kms:ViaService": f"secretsmanager.{self.region}.amazonaws.com",
                    "kms:EncryptionContext:SecretARN": secret_arn,
                }
            }
            function.allow(["kms:Decrypt"], [self._key.key_arn], conditions=via_secret)

    def _routes(self) -> None:
        to_data_plane = _integration("DataPlaneIntegration", self.data_plane)
        for route in _DATA_PLANE_ROUTES:
            key = apigateway.HttpRouteKey.with_(route.path, apigateway.HttpMethod.ANY)
            self._route(route.construct_id, key, to_data_plane, route.why_no_authorizer)
        # A path that nobody knows is answered by a function too, so that its refusal is a problem document.
        to_control_plane = _integration("ControlPlaneIntegration", self.control_plane)
        self._route("DefaultRoute", apigateway.HttpRouteKey.DEFAULT, to_control_plane, _NO_LOGIN_YET)

    def _route(
        self,
        construct_id: str,
        key: apigateway.HttpRouteKey,
        integration: apigateway.HttpRouteIntegration,
        why_no_authorizer: str,
    ) -> None:
        route = apigateway.HttpRoute(
            self,
            construct_id,
            http_api=cast("apigateway.IHttpApi", self.api),
            route_key=key,
            integration=integration,
        )
        accept(route, "AwsSolutions-APIG4", why_no_authorizer)

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


def _integration(construct_id: str, function: ServiceFunction) -> apigateway.HttpRouteIntegration:
    return integrations.HttpLambdaIntegration(
        construct_id,
        cast("lambda_.IFunction", function.alias),
        payload_format_version=apigateway.PayloadFormatVersion.VERSION_2_0,
    )
