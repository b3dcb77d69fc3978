"""The HTTP API and the functions behind it."""

import json
from collections.abc import Mapping, Sequence
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
from stacks.registry import keep_from_reading_clients, keep_from_writing_registry
from stacks.secrets import ServiceSecret, ServiceSecrets
from stacks.settings import Settings

# More than two of the store's time-outs, so that a call whose answer was lost can be repeated and still be answered by
# us; less than the 30 s after which the API gives up.
_TIMEOUT_SECONDS: Final = 15
# The table's verbs that each function uses, on the table itself.
# Deletes and queries: a bucket of an old layout is moved by whoever meets it. Condition checks: a bucket that lost
# shards is cleared, if they are still missing.
_DATA_PLANE_ACTIONS: Final = (
    "dynamodb:BatchGetItem",
    "dynamodb:ConditionCheckItem",
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
    "dynamodb:UpdateItem",
)
_IDENTITY_ACTIONS: Final = (
    "dynamodb:BatchGetItem",
    "dynamodb:ConditionCheckItem",
    "dynamodb:DeleteItem",
    "dynamodb:GetItem",
    "dynamodb:PutItem",
    "dynamodb:Query",
    "dynamodb:UpdateItem",
)
# Children of an entity, the buckets of a resource, every other list, and a namespace's jobs.
_CONTROL_PLANE_INDEXES: Final = (schema.GSI1, schema.GSI2, schema.GSI3, schema.GSI4)
# Children of an app, apps and the buckets of an app.
_IDENTITY_INDEXES: Final = (schema.GSI1, schema.GSI3)
# Both kinds that Bedrock has: those of AWS, and those that an account made.
_INFERENCE_PROFILES: Final = ("inference-profile", "application-inference-profile")
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
_VERIFIED_INSIDE: Final = (
    "The function verifies the token or the operator's key before it reads the body: the refusals of an authorizer are "
    "not problem documents, and the standing of a bearer is in the table."
)
_OPEN_FOR_LOGINS: Final = (
    "Whoever asks for a token has none yet: the credentials in the body are verified by the function, which answers so "
    "many tries of a client a minute. Revoking a token needs one, which the function verifies."
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


# Every method of these paths is the function's, so that a wrong one is refused with the methods that exist. All paths
# that are not listed are the control plane's.
_DATA_PLANE_ROUTES: Final = (
    _Route("AcquireRoute", "/v1/acquire", _VERIFIED_INSIDE),
    _Route("ExplainRoute", "/v1/explain", _VERIFIED_INSIDE),
    _Route("SettleRoute", "/v1/leases/settle", _VERIFIED_INSIDE),
    _Route("AdjustRoute", "/v1/leases/adjust", _VERIFIED_INSIDE),
    _Route("ReleaseRoute", "/v1/leases/release", _VERIFIED_INSIDE),
    _Route("UsageRoute", "/v1/usage", _VERIFIED_INSIDE),
    _Route("UsageBatchRoute", "/v1/usage/batch", _VERIFIED_INSIDE),
    _Route("SelectionRoute", "/v1/selection", _VERIFIED_INSIDE),
    _Route("OverrideRoute", "/v1/selection/override", _VERIFIED_INSIDE),
    _Route("HealthRoute", "/v1/health", _OPEN_TO_PROBES),
    _Route("ReadyRoute", "/v1/ready", _OPEN_TO_PROBES),
)
_IDENTITY_ROUTES: Final = (
    _Route("AuthRoute", "/v1/auth/{proxy+}", _OPEN_FOR_LOGINS),
    _Route("WhoamiRoute", "/v1/whoami", _VERIFIED_INSIDE),
    _Route("OrgsRoute", "/v1/orgs", _VERIFIED_INSIDE),
    _Route("OrgRoute", "/v1/orgs/{proxy+}", _VERIFIED_INSIDE),
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
        secrets: ServiceSecrets,
    ) -> None:
        super().__init__(
            scope,
            construct_id,
            description="Sluice: the HTTP API and its functions",
        )
        self._settings = settings
        self._table = table
        self._key = key
        self._secrets = secrets
        self._layers = ServiceLayers(self, "Layers", settings=settings)
        self.data_plane = self._data_plane()
        self.control_plane = self._control_plane()
        self.identity = self._identity()
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

    def _data_plane(self) -> ServiceFunction:
        secrets = {"SLUICE_SIGNING_SECRET": self._secrets.signing, "SLUICE_TOKEN_SECRET": self._secrets.token}
        function = self._function("DataPlane", "data_plane", "Acquires, leases, usage, selection and probes", secrets)
        function.allow(_DATA_PLANE_ACTIONS, [self._table.table_arn])
        self._allow_inference_profiles(function)
        keep_from_writing_registry(function, self._table)
        keep_from_reading_clients(function, self._table)
        return function

    def _control_plane(self) -> ServiceFunction:
        secrets = {
            "SLUICE_SIGNING_SECRET": self._secrets.signing,
            "SLUICE_TOKEN_SECRET": self._secrets.token,
            "SLUICE_OPERATOR_SECRET": self._secrets.operator,
        }
        description = "Configuration, and every path that nobody knows"
        function = self._function("ControlPlane", "control_plane", description, secrets)
        function.allow(_CONTROL_PLANE_ACTIONS, [self._table.table_arn])
        function.allow(["dynamodb:Query"], self._indexes(_CONTROL_PLANE_INDEXES))
        self._allow_inference_profiles(function)
        keep_from_writing_registry(function, self._table)
        keep_from_reading_clients(function, self._table)
        return function

    def _identity(self) -> ServiceFunction:
        """The only one that reads and writes clients, and that makes tokens."""
        secrets = {
            "SLUICE_SIGNING_SECRET": self._secrets.signing,
            "SLUICE_TOKEN_SECRET": self._secrets.token,
            "SLUICE_OPERATOR_SECRET": self._secrets.operator,
            "SLUICE_CREDENTIALS_SECRET": self._secrets.credentials,
        }
        function = self._function("Identity", "identity", "Orgs, apps, credentials and tokens", secrets)
        function.allow(_IDENTITY_ACTIONS, [self._table.table_arn])
        function.allow(["dynamodb:Query"], self._indexes(_IDENTITY_INDEXES))
        return function

    def _indexes(self, names: Sequence[str]) -> list[str]:
        return [f"{self._table.table_arn}/index/{name}" for name in names]

    def _function(
        self, construct_id: str, name: str, description: str, secrets: Mapping[str, ServiceSecret]
    ) -> ServiceFunction:
        """`secrets`: by the variable that names each to the function. It may read these and no other."""
        settings = self._settings
        function = ServiceFunction(
            self,
            construct_id,
            settings=settings,
            layers=self._layers,
            spec=FunctionSpec(
                name=name,
                description=description,
                timeout_seconds=_TIMEOUT_SECONDS,
                environment={
                    "SLUICE_TABLE": self._table.table_name,
                    "SLUICE_STORE_TIMEOUT_MS": str(settings.store_timeout_ms),
                    **{variable: secret.arn for variable, secret in secrets.items()},
                },
            ),
        )
        if self._key is not None:
            function.allow_key_through_table(self._key)
        self._allow_secrets(function, [secret.arn for secret in secrets.values()])
        return function

    def _allow_secrets(self, function: ServiceFunction, arns: Sequence[str]) -> None:
        function.allow(["secretsmanager:GetSecretValue"], arns)
        if self._key is not None:
            via_secret = {
                "StringEquals": {
                    "kms:ViaService": f"secretsmanager.{self.region}.amazonaws.com",
                    "kms:EncryptionContext:SecretARN": list(arns),
                }
            }
            function.allow(["kms:Decrypt"], [self._key.key_arn], conditions=via_secret)

    def _allow_inference_profiles(self, function: ServiceFunction) -> None:
        """To read which models they have, and no more. Labels may name any of this account, in any region."""
        arns = [f"arn:{self.partition}:bedrock:*:{self.account}:{kind}/*" for kind in _INFERENCE_PROFILES]
        function.allow(["bedrock:GetInferenceProfile"], arns)
        for kind in _INFERENCE_PROFILES:
            accept(
                function.role.node.find_child("DefaultPolicy"),
                f"AwsSolutions-IAM5[Resource::arn:<AWS::Partition>:bedrock:*:<AWS::AccountId>:{kind}/*]",
                "Tenants name inference profiles of this account while the product runs, in whatever region they call; "
                "the one action reads which models a profile has, and calls none.",
            )

    def _routes(self) -> None:
        to_data_plane = _integration("DataPlaneIntegration", self.data_plane)
        to_identity = _integration("IdentityIntegration", self.identity)
        for routes, integration in ((_DATA_PLANE_ROUTES, to_data_plane), (_IDENTITY_ROUTES, to_identity)):
            for route in routes:
                key = apigateway.HttpRouteKey.with_(route.path, apigateway.HttpMethod.ANY)
                self._route(route.construct_id, key, integration, route.why_no_authorizer)
        # A path that nobody knows is answered by a function too, so that its refusal is a problem document.
        to_control_plane = _integration("ControlPlaneIntegration", self.control_plane)
        self._route("DefaultRoute", apigateway.HttpRouteKey.DEFAULT, to_control_plane, _VERIFIED_INSIDE)

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
