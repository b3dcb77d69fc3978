"""The dashboard and the alarms."""

import json
from collections.abc import Callable

import pytest

from sluice.core.signals import METRICS_NAMESPACE, Signal
from tests.infrastructure.assembly import Assembly

ALARM = "AWS::CloudWatch::Alarm"
# The most that a period may show without an alarm, and how many periods in a row must show more.
EXPECTED = {
    "Api-Fault-Count": (5, 1),
    "DataPlane-Fault-Count": (5, 1),
    "DataPlane-Latency-P99": (1_000, 3),
    "DataPlane-Throttled-Count": (0, 1),
    "Signals-FailOpenAdmissions": (0, 1),
    "Signals-InternalErrors": (0, 1),
    "Signals-StoreAmbiguousWrites": (10, 1),
    "Signals-StoreConflicts": (100, 1),
    "Signals-StoreThrottles": (100, 1),
    "Signals-TransactionConflict": (100, 1),
    "Signals-Unavailable": (5, 1),
    "Table-Read-Throttled-Events": (0, 3),
    "Table-Write-Throttled-Events": (0, 3),
}


@pytest.mark.parametrize(("environment", "near"), [("dev", 800), ("staging", 3_200), ("prod", 32_000)])
def test_alarms(synthesized: Callable[[str], Assembly], environment: str, near: int) -> None:
    alarms = synthesized(environment).resources("Monitoring", ALARM).values()
    expected = EXPECTED | {"Table-Read-Consumed-Capacity": (near, 3), "Table-Write-Consumed-Capacity": (near, 3)}
    assert {alarm["AlarmName"]: (alarm["Threshold"], alarm["EvaluationPeriods"]) for alarm in alarms} == {
        f"Sluice-{environment}-{name}-Warning": bounds for name, bounds in expected.items()
    }
    assert {alarm["ComparisonOperator"] for alarm in alarms} == {"GreaterThanThreshold"}
    assert {alarm["TreatMissingData"] for alarm in alarms} == {"notBreaching"}


def test_signal_alarms_read_what_the_code_emits(prod: Assembly) -> None:
    custom = {
        alarm["MetricName"]: (alarm["Namespace"], alarm["Dimensions"], alarm["Statistic"])
        for alarm in prod.resources("Monitoring", ALARM).values()
        if alarm.get("Namespace") == METRICS_NAMESPACE
    }
    assert custom.keys() == {
        Signal.FAIL_OPEN_ADMISSIONS,
        Signal.INTERNAL_ERRORS,
        Signal.STORE_AMBIGUOUS_WRITES,
        Signal.STORE_CONFLICTS,
        Signal.STORE_THROTTLES,
        Signal.UNAVAILABLE,
    }
    service = prod.only("Api", "AWS::Lambda::Function")["Environment"]["Variables"]["POWERTOOLS_SERVICE_NAME"]
    for namespace, dimensions, statistic in custom.values():
        assert (namespace, statistic) == ("Sluice", "Sum")
        assert dimensions == [{"Name": "environment", "Value": "prod"}, {"Name": "service", "Value": service}]


@pytest.mark.parametrize("environment", ["staging", "prod"])
def test_alarms_tell_a_topic(synthesized: Callable[[str], Assembly], environment: str) -> None:
    assembly = synthesized(environment)
    (topic,) = assembly.resources("Monitoring", "AWS::SNS::Topic")
    for alarm in assembly.resources("Monitoring", ALARM).values():
        assert alarm["ActionsEnabled"] is True
        assert alarm["AlarmActions"] == [{"Ref": topic}]
        assert alarm["OKActions"] == [{"Ref": topic}]


def test_without_a_topic_nobody_is_told(synthesized: Callable[[str], Assembly]) -> None:
    dev = synthesized("dev")
    assert not dev.resources("Monitoring", "AWS::SNS::Topic")
    assert {alarm["ActionsEnabled"] for alarm in dev.resources("Monitoring", ALARM).values()} == {False}


def test_the_topic_is_encrypted_and_demands_tls(prod: Assembly) -> None:
    ((key_name, key),) = prod.resources("Monitoring", "AWS::KMS::Key").items()
    assert prod.only("Monitoring", "AWS::SNS::Topic")["KmsMasterKeyId"] == {"Fn::GetAtt": [key_name, "Arn"]}
    assert key["EnableKeyRotation"] is True
    policy = prod.only("Monitoring", "AWS::SNS::TopicPolicy")["PolicyDocument"]["Statement"]
    (denied,) = (s for s in policy if s["Effect"] == "Deny")
    assert denied["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}


def test_cloudwatch_may_publish_through_the_key(prod: Assembly) -> None:
    """The policy that demands TLS replaces the default one: without these two statements no alarm arrives."""
    alarms_of_this_account = {
        "Principal": {"Service": "cloudwatch.amazonaws.com"},
        "Condition": {"StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}},
    }
    policy = prod.only("Monitoring", "AWS::SNS::TopicPolicy")["PolicyDocument"]["Statement"]
    (publish,) = (s for s in policy if s["Effect"] == "Allow")
    assert publish["Action"] == "sns:Publish"
    assert publish.items() >= alarms_of_this_account.items()
    key_policy = prod.only("Monitoring", "AWS::KMS::Key")["KeyPolicy"]["Statement"]
    (use,) = (s for s in key_policy if s["Principal"] == alarms_of_this_account["Principal"])
    assert set(use["Action"]) == {"kms:Decrypt", "kms:GenerateDataKey"}
    assert use.items() >= alarms_of_this_account.items()


def test_local_has_a_dashboard_and_no_alarm(local: Assembly) -> None:
    assert not local.resources("Monitoring", ALARM)
    assert local.only("Monitoring", "AWS::CloudWatch::Dashboard")


def test_the_dashboard_shows_every_signal_and_the_table(each: Assembly) -> None:
    body = json.dumps(each.only("Monitoring", "AWS::CloudWatch::Dashboard")["DashboardBody"])
    shown = {name for name in (*Signal, "ConsumedWriteCapacityUnits", "ConsumedReadCapacityUnits") if name in body}
    assert shown == {*Signal, "ConsumedWriteCapacityUnits", "ConsumedReadCapacityUnits"}
    for name in ("TransactionConflict", "WriteThrottleEvents", "ReadThrottleEvents", "p99"):
        assert name in body
