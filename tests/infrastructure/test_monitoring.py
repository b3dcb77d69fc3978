"""The dashboard and the alarms."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from sluice.core.signals import METRICS_NAMESPACE, Signal
from tests.infrastructure.assembly import Assembly, Properties

ALARM = "AWS::CloudWatch::Alarm"
# The most that a period may show without an alarm, and how many periods in a row must show more.
EXPECTED = {
    "Api-Fault-Count": (5, 1),
    "DataPlane-Fault-Count": (5, 1),
    "DataPlane-Latency-P99": (1_000, 3),
    "DataPlane-Throttled-Count": (0, 1),
    "DataPlane-FailOpenAdmissions": (0, 1),
    "DataPlane-GiveBacksLost": (10, 1),
    "DataPlane-InternalErrors": (0, 1),
    "DataPlane-StandingLookupsFailed": (0, 1),
    "DataPlane-StoreAmbiguousWrites": (10, 1),
    "DataPlane-StoreConflicts": (100, 1),
    "DataPlane-StoreThrottles": (100, 1),
    "DataPlane-TotalsFailed": (10, 1),
    "DataPlane-Unavailable": (5, 1),
    "ControlPlane-Fault-Count": (5, 1),
    "ControlPlane-Latency-P99": (1_000, 3),
    "ControlPlane-Throttled-Count": (0, 1),
    "ControlPlane-InternalErrors": (0, 1),
    "ControlPlane-StandingLookupsFailed": (0, 1),
    "ControlPlane-StoreAmbiguousWrites": (10, 1),
    "ControlPlane-StoreConflicts": (100, 1),
    "ControlPlane-StoreThrottles": (100, 1),
    "ControlPlane-Unavailable": (5, 1),
    "Identity-Fault-Count": (5, 1),
    "Identity-Latency-P99": (1_000, 3),
    "Identity-Throttled-Count": (0, 1),
    "Identity-InternalErrors": (0, 1),
    "Identity-StandingLookupsFailed": (0, 1),
    "Identity-StoreAmbiguousWrites": (10, 1),
    "Identity-StoreConflicts": (100, 1),
    "Identity-StoreThrottles": (100, 1),
    "Identity-Unavailable": (5, 1),
    "Rollup-Fault-Count": (2, 1),
    "Rollup-Latency-P99": (50_000, 3),
    "Rollup-Throttled-Count": (2, 1),
    "Rollup-JobsFailed": (0, 1),
    "Rollup-RollupLagSeconds": (119, 1),
    "Rollup-SecretsTooOld": (0, 1),
    "Rollup-StoreAmbiguousWrites": (10, 1),
    "Rollup-StoreConflicts": (100, 1),
    "Rollup-StoreThrottles": (100, 1),
    "Rollup-SweepFailures": (10, 1),
    "Rollup-SweepLagSeconds": (299, 1),
    "Rollup-TotalsFailed": (10, 1),
    "Rollup-Unavailable": (5, 1),
    "Undelivered-Queue-Message-Count-Max": (0, 1),
    "Aggregator-Fault-Count": (2, 1),
    "Aggregator-Iterator-Age-Max": (600_000, 1),
    "Aggregator-Latency-P99": (50_000, 3),
    "Aggregator-Throttled-Count": (2, 1),
    "Aggregator-InternalErrors": (0, 1),
    "Aggregator-StoreAmbiguousWrites": (10, 1),
    "Aggregator-StoreConflicts": (100, 1),
    "Aggregator-StoreThrottles": (100, 1),
    "Aggregator-StreamFailures": (10, 1),
    "Aggregator-StreamGaps": (0, 1),
    "Aggregator-Unavailable": (5, 1),
    "AggregatorFailures-Queue-Message-Count-Max": (0, 1),
    "Archiver-Fault-Count": (2, 1),
    "Archiver-Iterator-Age-Max": (600_000, 1),
    "Archiver-Latency-P99": (50_000, 3),
    "Archiver-Throttled-Count": (2, 1),
    "Archiver-StoreThrottles": (100, 1),
    "Archiver-StreamFailures": (10, 1),
    "Archiver-Unavailable": (5, 1),
    "ArchiverFailures-Queue-Message-Count-Max": (0, 1),
    "Table-TransactionConflict": (100, 1),
    "Table-Read-Throttled-Events": (0, 3),
    "Table-Write-Throttled-Events": (0, 3),
}
ALARMED_SIGNALS = {
    "data_plane": {
        Signal.FAIL_OPEN_ADMISSIONS,
        Signal.GIVE_BACKS_LOST,
        Signal.INTERNAL_ERRORS,
        Signal.STANDING_LOOKUPS_FAILED,
        Signal.STORE_AMBIGUOUS_WRITES,
        Signal.STORE_CONFLICTS,
        Signal.STORE_THROTTLES,
        Signal.TOTALS_FAILED,
        Signal.UNAVAILABLE,
    },
    "control_plane": {
        Signal.INTERNAL_ERRORS,
        Signal.STANDING_LOOKUPS_FAILED,
        Signal.STORE_AMBIGUOUS_WRITES,
        Signal.STORE_CONFLICTS,
        Signal.STORE_THROTTLES,
        Signal.UNAVAILABLE,
    },
    "identity": {
        Signal.INTERNAL_ERRORS,
        Signal.STANDING_LOOKUPS_FAILED,
        Signal.STORE_AMBIGUOUS_WRITES,
        Signal.STORE_CONFLICTS,
        Signal.STORE_THROTTLES,
        Signal.UNAVAILABLE,
    },
    "rollup": {
        Signal.JOBS_FAILED,
        Signal.ROLLUP_LAG_SECONDS,
        Signal.SECRETS_TOO_OLD,
        Signal.STORE_AMBIGUOUS_WRITES,
        Signal.STORE_CONFLICTS,
        Signal.STORE_THROTTLES,
        Signal.SWEEP_FAILURES,
        Signal.SWEEP_LAG_SECONDS,
        Signal.TOTALS_FAILED,
        Signal.UNAVAILABLE,
    },
    "aggregator": {
        Signal.INTERNAL_ERRORS,
        Signal.STORE_AMBIGUOUS_WRITES,
        Signal.STORE_CONFLICTS,
        Signal.STORE_THROTTLES,
        Signal.STREAM_FAILURES,
        Signal.STREAM_GAPS,
        Signal.UNAVAILABLE,
    },
    "archiver": {Signal.STORE_THROTTLES, Signal.STREAM_FAILURES, Signal.UNAVAILABLE},
}
ALARM_NAMES = {
    "data_plane": "DataPlane",
    "control_plane": "ControlPlane",
    "identity": "Identity",
    "rollup": "Rollup",
    "aggregator": "Aggregator",
    "archiver": "Archiver",
}
STACKS = {
    "data_plane": "Api",
    "control_plane": "Api",
    "identity": "Api",
    "rollup": "Jobs",
    "aggregator": "Streams",
    "archiver": "Streams",
}
LAGS = {Signal.ROLLUP_LAG_SECONDS, Signal.SWEEP_LAG_SECONDS}
# The one alarm on what does not happen: so many runs a period at least, for so many periods.
SILENCE = "Rollup-Usage-Count"


@pytest.mark.parametrize(("environment", "near"), [("dev", 800), ("staging", 3_200), ("prod", 32_000)])
def test_alarms(synthesized: Callable[[str], Assembly], environment: str, near: int) -> None:
    found = {alarm["AlarmName"]: alarm for alarm in synthesized(environment).resources("Monitoring", ALARM).values()}
    silence = found.pop(f"Sluice-{environment}-{SILENCE}-Warning")
    assert (silence["Threshold"], silence["EvaluationPeriods"]) == (1, 3)
    assert (silence["ComparisonOperator"], silence["TreatMissingData"]) == ("LessThanThreshold", "breaching")
    alarms = found.values()
    expected = EXPECTED | {"Table-Read-Consumed-Capacity": (near, 3), "Table-Write-Consumed-Capacity": (near, 3)}
    assert {alarm["AlarmName"]: (alarm["Threshold"], alarm["EvaluationPeriods"]) for alarm in alarms} == {
        f"Sluice-{environment}-{name}-Warning": bounds for name, bounds in expected.items()
    }
    assert {alarm["ComparisonOperator"] for alarm in alarms} == {"GreaterThanThreshold"}
    assert {alarm["TreatMissingData"] for alarm in alarms} == {"notBreaching"}


def dimensions(metric: Properties) -> dict[str, Any]:
    return {dimension["Name"]: dimension["Value"] for dimension in metric["Dimensions"]}


def test_signal_alarms_read_what_the_code_emits(prod: Assembly) -> None:
    found: dict[str, set[str]] = {}
    for alarm in prod.resources("Monitoring", ALARM).values():
        if alarm.get("Namespace") != METRICS_NAMESPACE:
            continue
        # A lag is not added up: two runs that are a minute late are not two minutes late.
        assert alarm["Statistic"] == ("Maximum" if alarm["MetricName"] in LAGS else "Sum")
        read = dimensions(alarm)
        service = read.pop("service")
        assert read == {"environment": "prod"}
        assert alarm["AlarmName"] == f"Sluice-prod-{ALARM_NAMES[service]}-{alarm['MetricName']}-Warning"
        found.setdefault(service, set()).add(alarm["MetricName"])
    assert found == ALARMED_SIGNALS
    # What the functions put into the dimension.
    assert found.keys() == {service for part in ("Api", "Jobs", "Streams") for service in prod.functions(part)}


@pytest.mark.parametrize("service", STACKS)
def test_function_alarms_watch_the_function_that_they_name(prod: Assembly, service: str) -> None:
    """The names alone would look right with one function watched twice."""
    name = ALARM_NAMES[service]
    reference = {"Ref": prod.logical_id(service, STACKS[service])}
    alarms = {alarm["AlarmName"]: alarm for alarm in prod.resources("Monitoring", ALARM).values()}
    for what in ("Fault-Count", "Latency-P99", "Throttled-Count"):
        # A metric with a label stands in a list.
        (metric,) = alarms[f"Sluice-prod-{name}-{what}-Warning"]["Metrics"]
        watched = dimensions(metric["MetricStat"]["Metric"])
        assert watched.keys() == {"FunctionName"}
        assert prod.exported(STACKS[service], watched["FunctionName"]) == reference


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


def test_the_dashboard_shows_all_functions_and_their_signals(each: Assembly) -> None:
    body = json.dumps(each.only("Monitoring", "AWS::CloudWatch::Dashboard")["DashboardBody"])
    for service, signals in ALARMED_SIGNALS.items():
        output = f"ExportsOutputRef{each.logical_id(service, STACKS[service])}"
        assert output in body
        for signal in signals:
            # The body is JSON in a string in JSON: a metric is its namespace, name and dimensions in a row.
            metric = json.dumps([METRICS_NAMESPACE, signal, "environment", each.settings.name, "service", service])
            assert json.dumps(metric.replace(", ", ",").strip("[]")).strip('"') in body


def test_the_dashboard_shows_every_signal_and_the_table(each: Assembly) -> None:
    body = json.dumps(each.only("Monitoring", "AWS::CloudWatch::Dashboard")["DashboardBody"])
    shown = {name for name in (*Signal, "ConsumedWriteCapacityUnits", "ConsumedReadCapacityUnits") if name in body}
    assert shown == {*Signal, "ConsumedWriteCapacityUnits", "ConsumedReadCapacityUnits"}
    for name in ("TransactionConflict", "WriteThrottleEvents", "ReadThrottleEvents", "p99"):
        assert name in body
