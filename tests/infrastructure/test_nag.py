"""cdk-nag looks at every synth, and every acceptance stands on its own construct."""

from pathlib import Path

import pytest
from aws_cdk import Stack
from aws_cdk import aws_s3 as s3

from stacks.composition import compose
from stacks.settings import ENVIRONMENTS
from tests.infrastructure.assembly import Assembly, new_app

PROFILES_READ = {
    (
        f"{function}/Role/DefaultPolicy",
        f"AwsSolutions-IAM5[Resource::arn:<AWS::Partition>:bedrock:*:<AWS::AccountId>:{kind}/*]",
    )
    for function in ("DataPlane", "ControlPlane")
    for kind in ("inference-profile", "application-inference-profile")
}
ACCEPTED = PROFILES_READ | {
    ("DataPlane/Role/DefaultPolicy", "AwsSolutions-IAM5[Resource::*]"),
    ("ControlPlane/Role/DefaultPolicy", "AwsSolutions-IAM5[Resource::*]"),
    ("Identity/Role/DefaultPolicy", "AwsSolutions-IAM5[Resource::*]"),
    ("Signing/Secret", "AwsSolutions-SMG4"),
    ("Token/Secret", "AwsSolutions-SMG4"),
    ("Operator/Secret", "AwsSolutions-SMG4"),
    ("Credentials/Secret", "AwsSolutions-SMG4"),
    ("Rollup/Role/DefaultPolicy", "AwsSolutions-IAM5[Resource::*]"),
    ("Rollup/Role/DefaultPolicy", "AwsSolutions-IAM5[Resource::<import>/archive/ns=*]"),
    ("Undelivered", "AwsSolutions-SQS3"),
    ("Aggregator/Role/DefaultPolicy", "AwsSolutions-IAM5[Resource::*]"),
    ("AggregatorFailures", "AwsSolutions-SQS3"),
    ("Archiver/Role/DefaultPolicy", "AwsSolutions-IAM5[Resource::*]"),
    ("Archiver/Role/DefaultPolicy", "AwsSolutions-IAM5[Resource::<import>/archive/ns=*]"),
    ("ArchiverFailures", "AwsSolutions-SQS3"),
    ("AcquireRoute", "AwsSolutions-APIG4"),
    ("ExplainRoute", "AwsSolutions-APIG4"),
    ("SettleRoute", "AwsSolutions-APIG4"),
    ("AdjustRoute", "AwsSolutions-APIG4"),
    ("ReleaseRoute", "AwsSolutions-APIG4"),
    ("UsageRoute", "AwsSolutions-APIG4"),
    ("UsageBatchRoute", "AwsSolutions-APIG4"),
    ("SelectionRoute", "AwsSolutions-APIG4"),
    ("OverrideRoute", "AwsSolutions-APIG4"),
    ("HealthRoute", "AwsSolutions-APIG4"),
    ("ReadyRoute", "AwsSolutions-APIG4"),
    ("AuthRoute", "AwsSolutions-APIG4"),
    ("WhoamiRoute", "AwsSolutions-APIG4"),
    ("OrgsRoute", "AwsSolutions-APIG4"),
    ("OrgRoute", "AwsSolutions-APIG4"),
    ("DefaultRoute", "AwsSolutions-APIG4"),
}


def test_the_acceptances_are_these(each: Assembly) -> None:
    """A construct path of "" would be an excuse for a whole stack."""
    kept = {("AlertQueue", "AwsSolutions-SQS3")} if each.settings.alert_queue else set()
    assert each.acceptances() == ACCEPTED | kept


def test_a_finding_that_nobody_accepted_stops_the_synth(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    app = new_app(tmp_path)
    compose(app, ENVIRONMENTS["local"])
    data = app.node.find_child("Sluice-local-Data")
    assert isinstance(data, Stack)
    s3.Bucket(data, "Careless")
    with pytest.raises(RuntimeError, match=r"(?i)validation"):
        app.synth()
    captured = capfd.readouterr()
    report = (tmp_path / "validation-report.json").read_text() + captured.out + captured.err
    assert "AwsSolutions-S1" in report
    assert "Careless" in report
