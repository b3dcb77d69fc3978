"""The HTTP API in front of the functions."""

import json

from data_plane.routes import ROUTES
from identity.routes import ROUTES as IDENTITY_ROUTES
from tests.infrastructure.assembly import Assembly

# Route key to service. Written out, so that a path that changes hands is noticed here.
TARGETS = {
    "ANY /v1/acquire": "data_plane",
    "ANY /v1/explain": "data_plane",
    "ANY /v1/leases/settle": "data_plane",
    "ANY /v1/leases/adjust": "data_plane",
    "ANY /v1/leases/release": "data_plane",
    "ANY /v1/usage": "data_plane",
    "ANY /v1/usage/batch": "data_plane",
    "ANY /v1/selection": "data_plane",
    "ANY /v1/selection/override": "data_plane",
    "ANY /v1/health": "data_plane",
    "ANY /v1/ready": "data_plane",
    "ANY /v1/auth/{proxy+}": "identity",
    "ANY /v1/whoami": "identity",
    "ANY /v1/orgs": "identity",
    "ANY /v1/orgs/{proxy+}": "identity",
    "$default": "control_plane",
}


def test_every_route_reaches_the_alias_of_its_function(each: Assembly) -> None:
    integrations = each.resources("Api", "AWS::ApiGatewayV2::Integration")
    assert len(integrations) == len(set(TARGETS.values()))
    for integration in integrations.values():
        assert integration["IntegrationType"] == "AWS_PROXY"
        assert integration["PayloadFormatVersion"] == "2.0"
    aliases = {
        f"integrations/{name}": integration["IntegrationUri"]["Ref"] for name, integration in integrations.items()
    }
    routes = each.resources("Api", "AWS::ApiGatewayV2::Route").values()
    assert len(routes) == len(TARGETS)
    reached = {}
    for route in routes:
        prefix, integration = route["Target"]["Fn::Join"][1]
        reached[route["RouteKey"]] = aliases[prefix + integration["Ref"]]
    assert reached == {key: each.alias(service)[0] for key, service in TARGETS.items()}


def test_the_api_may_call_each_alias_for_its_own_routes_only(each: Assembly) -> None:
    (api,) = each.resources("Api", "AWS::ApiGatewayV2::Api")
    permissions = each.resources("Api", "AWS::Lambda::Permission").values()
    allowed = set()
    for permission in permissions:
        assert permission["Action"] == "lambda:InvokeFunction"
        assert permission["Principal"] == "apigateway.amazonaws.com"
        *arn, end = permission["SourceArn"]["Fn::Join"][1]
        assert {"Ref": api} in arn
        allowed.add((permission["FunctionName"]["Ref"], end))
    assert len(permissions) == len(allowed)
    ends = {key: f"/*/*{key.removeprefix('ANY ')}" for key in TARGETS} | {"$default": "/*/*"}
    assert allowed == {(each.alias(service)[0], ends[key]) for key, service in TARGETS.items()}


def test_the_api_sends_the_data_plane_every_path_that_it_serves(each: Assembly) -> None:
    """The stacks may not import a function, so that the paths stand in both: this keeps them the same."""
    assert {key for key, service in TARGETS.items() if service == "data_plane"} == {f"ANY {path}" for path in ROUTES}


def test_the_api_sends_identity_every_path_that_it_serves() -> None:
    patterns = [key.removeprefix("ANY ") for key, service in TARGETS.items() if service == "identity"]
    exact = {pattern for pattern in patterns if "{" not in pattern}
    below = tuple(pattern.removesuffix("{proxy+}") for pattern in patterns if "{" in pattern)
    assert len(exact) + len(below) == len(patterns)
    for path in IDENTITY_ROUTES:
        assert path in exact or path.startswith(below)


def test_default_stage_throttles(each: Assembly) -> None:
    stage = each.only("Api", "AWS::ApiGatewayV2::Stage")
    assert stage["StageName"] == "$default"
    assert stage["AutoDeploy"] is True
    assert stage["DefaultRouteSettings"] == {
        "ThrottlingRateLimit": each.settings.api_rate_per_second,
        "ThrottlingBurstLimit": each.settings.api_burst,
    }


def test_access_log_is_json_and_names_nobody(each: Assembly) -> None:
    settings = each.only("Api", "AWS::ApiGatewayV2::Stage")["AccessLogSettings"]
    assert set(json.loads(settings["Format"]).values()) == {
        "$context.requestId",
        "$context.routeKey",
        "$context.httpMethod",
        "$context.status",
        "$context.responseLength",
        "$context.responseLatency",
        "$context.integrationLatency",
        "$context.integrationStatus",
        "$context.error.responseType",
        "$context.requestTime",
    }
    group, attribute = settings["DestinationArn"]["Fn::GetAtt"]
    assert attribute == "Arn"
    assert group in each.resources("Api", "AWS::Logs::LogGroup")
