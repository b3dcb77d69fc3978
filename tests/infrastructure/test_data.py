"""The table and the archive."""

import json
from collections.abc import Callable

import pytest

from stacks.secrets import PURPOSE_TAG
from tests.infrastructure.assembly import Assembly, Properties
from tools import rotate_secret

TABLE = "AWS::DynamoDB::GlobalTable"
BUCKET = "AWS::S3::Bucket"
SECRET = "AWS::SecretsManager::Secret"


def replica(assembly: Assembly) -> Properties:
    (only,) = assembly.only("Data", TABLE)["Replicas"]
    found: Properties = only
    return found


def test_keys_and_index_projections(each: Assembly) -> None:
    table = each.only("Data", TABLE)

    def keys(of: Properties) -> dict[str, str]:
        return {part["KeyType"]: part["AttributeName"] for part in of["KeySchema"]}

    assert keys(table) == {"HASH": "PK", "RANGE": "SK"}
    assert {index["IndexName"]: index["Projection"] for index in table["GlobalSecondaryIndexes"]} == {
        "GSI1": {"ProjectionType": "ALL"},
        "GSI2": {"ProjectionType": "KEYS_ONLY"},
        "GSI3": {"ProjectionType": "KEYS_ONLY"},
        "GSI4": {"ProjectionType": "KEYS_ONLY"},
    }
    for index in table["GlobalSecondaryIndexes"]:
        assert keys(index) == {"HASH": f"{index['IndexName']}PK", "RANGE": f"{index['IndexName']}SK"}
    assert {attribute["AttributeType"] for attribute in table["AttributeDefinitions"]} == {"S"}
    assert "LocalSecondaryIndexes" not in table


def test_stream_ttl_and_billing(each: Assembly) -> None:
    table = each.only("Data", TABLE)
    assert table["StreamSpecification"] == {"StreamViewType": "NEW_AND_OLD_IMAGES"}
    assert table["TimeToLiveSpecification"] == {"AttributeName": "ttl", "Enabled": True}
    assert table["BillingMode"] == "PAY_PER_REQUEST"
    assert table["WriteOnDemandThroughputSettings"] == {"MaxWriteRequestUnits": each.settings.max_write_request_units}
    assert replica(each)["ReadOnDemandThroughputSettings"] == {
        "MaxReadRequestUnits": each.settings.max_read_request_units
    }


@pytest.mark.parametrize(("environment", "days"), [("local", None), ("dev", None), ("staging", 7), ("prod", 35)])
def test_point_in_time_recovery(synthesized: Callable[[str], Assembly], environment: str, days: int | None) -> None:
    recovery = replica(synthesized(environment))["PointInTimeRecoverySpecification"]
    assert recovery["PointInTimeRecoveryEnabled"] is (days is not None)
    assert recovery.get("RecoveryPeriodInDays") == days


@pytest.mark.parametrize(
    ("environment", "kept"), [("local", False), ("dev", False), ("staging", False), ("prod", True)]
)
def test_only_prod_keeps_its_data(synthesized: Callable[[str], Assembly], environment: str, kept: bool) -> None:
    assembly = synthesized(environment)
    assert replica(assembly).get("DeletionProtectionEnabled", False) is kept
    holding_data = [
        resource
        for resource in assembly.raw("Data")["Resources"].values()
        if resource["Type"] in {TABLE, BUCKET, SECRET, "AWS::KMS::Key"}
    ]
    assert len(holding_data) >= 4
    policy = "Retain" if kept else "Delete"
    assert {resource["DeletionPolicy"] for resource in holding_data} == {policy}
    assert {resource["UpdateReplacePolicy"] for resource in holding_data} == {policy}


@pytest.mark.parametrize("environment", ["staging", "prod"])
def test_a_customer_key_encrypts_table_and_archive(synthesized: Callable[[str], Assembly], environment: str) -> None:
    assembly = synthesized(environment)
    ((name, key),) = assembly.resources("Data", "AWS::KMS::Key").items()
    arn = {"Fn::GetAtt": [name, "Arn"]}
    assert key["EnableKeyRotation"] is True
    assert assembly.only("Data", TABLE)["SSESpecification"] == {"SSEEnabled": True, "SSEType": "KMS"}
    assert replica(assembly)["SSESpecification"] == {"KMSMasterKeyId": arn}
    (rule,) = archive(assembly)["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    assert rule["ServerSideEncryptionByDefault"] == {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": arn}
    assert [secret["KmsKeyId"] for secret in assembly.resources("Data", SECRET).values()] == [arn] * 4


@pytest.mark.parametrize("environment", ["local", "dev"])
def test_other_environments_pay_for_no_key(synthesized: Callable[[str], Assembly], environment: str) -> None:
    assembly = synthesized(environment)
    assert not assembly.resources("Data", "AWS::KMS::Key")
    (rule,) = archive(assembly)["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    assert rule["ServerSideEncryptionByDefault"] == {"SSEAlgorithm": "AES256"}
    assert not any("KmsKeyId" in secret for secret in assembly.resources("Data", SECRET).values())


def test_every_secret_starts_with_one_key_that_nobody_chose(each: Assembly) -> None:
    secrets = each.resources("Data", SECRET).values()
    assert len(secrets) == 4
    for secret in secrets:
        assert "SecretString" not in secret
        assert "Name" not in secret
        made = dict(secret["GenerateSecretString"])
        assert json.loads(made.pop("SecretStringTemplate")) == {"previous": ""}
        assert made == {"GenerateStringKey": "current", "PasswordLength": 64, "ExcludePunctuation": True}


@pytest.mark.parametrize("purpose", ["Signing", "Token", "Operator", "Credentials"])
def test_every_secret_is_found_by_its_output(each: Assembly, purpose: str) -> None:
    output = each.raw("Data")["Outputs"][f"{purpose}SecretArn"]
    assert output["Value"] == {"Ref": each.secret(purpose)}


def test_every_secret_says_what_it_is_for(each: Assembly) -> None:
    """By this tag the rotation knows how long a key must stay valid."""
    tags = [{tag["Key"]: tag["Value"] for tag in secret["Tags"]} for secret in each.resources("Data", SECRET).values()]
    assert rotate_secret.PURPOSE_TAG == PURPOSE_TAG
    assert {tag[PURPOSE_TAG] for tag in tags} == rotate_secret.PURPOSES.keys()


def archive(assembly: Assembly) -> Properties:
    (logged,) = (b for b in assembly.resources("Data", BUCKET).values() if "LoggingConfiguration" in b)
    return logged


def test_buckets_are_closed_to_the_public(each: Assembly) -> None:
    buckets = each.resources("Data", BUCKET)
    assert len(buckets) == 2
    for bucket in buckets.values():
        assert set(bucket["PublicAccessBlockConfiguration"].values()) == {True}
        assert len(bucket["PublicAccessBlockConfiguration"]) == 4


def test_buckets_refuse_anything_but_tls(each: Assembly) -> None:
    policies = each.resources("Data", "AWS::S3::BucketPolicy").values()
    assert {policy["Bucket"]["Ref"] for policy in policies} == set(each.resources("Data", BUCKET))
    for policy in policies:
        denied = [s for s in policy["PolicyDocument"]["Statement"] if s["Effect"] == "Deny"]
        conditions = [statement["Condition"] for statement in denied]
        assert {"Bool": {"aws:SecureTransport": "false"}} in conditions
        assert {"NumericLessThan": {"s3:TlsVersion": 1.2}} in conditions
        assert all(s["Action"] == "s3:*" and s["Principal"] == {"AWS": "*"} for s in denied)


def test_archive_is_versioned_and_ages(each: Assembly) -> None:
    bucket = archive(each)
    assert bucket["VersioningConfiguration"] == {"Status": "Enabled"}
    (rule,) = bucket["LifecycleConfiguration"]["Rules"]
    assert rule["Status"] == "Enabled"
    assert rule["ExpirationInDays"] == each.settings.archive_expiry_days
    assert rule["NoncurrentVersionExpiration"] == {"NoncurrentDays": 30}
    assert rule["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 1}


def test_outputs_that_local_tooling_reads(each: Assembly) -> None:
    assert {"TableName", "ArchiveBucketName", "SigningSecretArn"} <= each.raw("Data")["Outputs"].keys()
    assert {"ApiId", "ApiUrl"} <= each.raw("Api")["Outputs"].keys()
