"""The HTTP API in front of the functions."""

import json

from tests.infrastructure.assembly import Assembly


def test_everything_reaches_the_alias_of_the_data_plane(each: Assembly) -> None:
    route = each.only("Api", "AWS::ApiGatewayV2::Route")
    (alias,) = each.resources("Api", "AWS::Lambda::Alias")
    ((name, integration),) = each.resources("Api", "AWS::ApiGatewayV2::Integration").items()
    assert route["RouteKey"] == "$default"
    assert route["Target"] == {"Fn::Join": ["", ["integrations/", {"Ref": name}]]}
    assert integration["IntegrationType"] == "AWS_PROXY"
    assert integration["PayloadFormatVersion"] == "2.0"
    assert integration["IntegrationUri"] == {"Ref": alias}
    permission = each.only("Api", "AWS::Lambda::Permission")
    assert permission["FunctionName"] == {"Ref": alias}
    assert permission["Principal"] == "apigateway.amazonaws.com"
    (api,) = each.resources("Api", "AWS::ApiGatewayV2::Api")
    assert {"Ref": api} in permission["SourceArn"]["Fn::Join"][1]


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
