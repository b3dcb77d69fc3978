"""What must survive: the one table, the archive, and the secrets."""

from typing import Final, cast

import aws_cdk as cdk
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct

from sluice.repository import schema
from stacks.secrets import service_secrets
from stacks.settings import Settings

_PROJECTIONS: Final = {
    schema.PROJECT_ALL: dynamodb.ProjectionType.ALL,
    schema.PROJECT_KEYS_ONLY: dynamodb.ProjectionType.KEYS_ONLY,
}
_ACCESS_LOG_DAYS: Final = 90
_OLD_VERSION_DAYS: Final = 30
_COLD_AFTER_DAYS: Final = 90


class DataStack(cdk.Stack):
    def __init__(self, scope: Construct, construct_id: str, *, settings: Settings) -> None:
        super().__init__(
            scope,
            construct_id,
            description="Sluice: the table and the archive",
            termination_protection=settings.deletion_protection,
        )
        self._settings = settings
        self._removal = cdk.RemovalPolicy.RETAIN if settings.retain_data else cdk.RemovalPolicy.DESTROY
        self.key: kms.Key | None = self._data_key() if settings.customer_managed_key else None
        self.table = self._table()
        self.archive = self._archive()
        self.secrets = service_secrets(self, settings=settings, key=self.key)
        cdk.CfnOutput(self, "TableName", value=self.table.table_name)
        cdk.CfnOutput(self, "ArchiveBucketName", value=self.archive.bucket_name)

    def _data_key(self) -> kms.Key:
        return kms.Key(
            self,
            "DataKey",
            description=f"Sluice {self._settings.name}: table, archive and secrets",
            enable_key_rotation=True,
            removal_policy=self._removal,
        )

    def _table(self) -> dynamodb.TableV2:
        settings = self._settings
        recovery_days = settings.point_in_time_recovery_days
        table = dynamodb.TableV2(
            self,
            "Table",
            partition_key=_text(schema.PARTITION_KEY),
            sort_key=_text(schema.SORT_KEY),
            global_secondary_indexes=[
                _index(name, projection) for name, projection in schema.INDEX_PROJECTIONS.items()
            ],
            billing=dynamodb.Billing.on_demand(
                max_read_request_units=settings.max_read_request_units,
                max_write_request_units=settings.max_write_request_units,
            ),
            dynamo_stream=dynamodb.StreamViewType.NEW_AND_OLD_IMAGES,
            time_to_live_attribute=schema.TTL_ATTRIBUTE,
            point_in_time_recovery_specification=dynamodb.PointInTimeRecoverySpecification(
                point_in_time_recovery_enabled=recovery_days is not None, recovery_period_in_days=recovery_days
            ),
            deletion_protection=settings.deletion_protection,
            removal_policy=self._removal,
        )
        if self.key is not None:
            _encrypt(table, self.key)
        return table

    def _archive(self) -> s3.Bucket:
        settings = self._settings
        return s3.Bucket(
            self,
            "Archive",
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            enforce_ssl=True,
            minimum_tls_version=1.2,
            versioned=True,
            encryption=s3.BucketEncryption.KMS if self.key else s3.BucketEncryption.S3_MANAGED,
            encryption_key=cast("kms.IKey", self.key) if self.key else None,
            bucket_key_enabled=True if self.key else None,
            object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
            server_access_logs_bucket=cast("s3.IBucket", self._access_logs()),
            server_access_logs_prefix="archive/",
            lifecycle_rules=[
                s3.LifecycleRule(
                    id="age",
                    transitions=_transitions(settings.archive_expiry_days),
                    expiration=cdk.Duration.days(settings.archive_expiry_days),
                    # A redelivered batch overwrites its own object; the older copy is only for mistakes.
                    noncurrent_version_expiration=cdk.Duration.days(_OLD_VERSION_DAYS),
                    abort_incomplete_multipart_upload_after=cdk.Duration.days(1),
                )
            ],
            removal_policy=self._removal,
        )

    def _access_logs(self) -> s3.Bucket:
        return s3.Bucket(
            self,
            "ArchiveAccessLogs",
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            enforce_ssl=True,
            minimum_tls_version=1.2,
            # S3 delivers access logs only to buckets with its own keys.
            encryption=s3.BucketEncryption.S3_MANAGED,
            object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
            lifecycle_rules=[s3.LifecycleRule(id="age", expiration=cdk.Duration.days(_ACCESS_LOG_DAYS))],
            removal_policy=self._removal,
        )


def _encrypt(table: dynamodb.TableV2, key: kms.Key) -> None:
    # TableV2 can set a customer's key only in a stack with a fixed region, and these stacks have none.
    resource = cast("dynamodb.CfnGlobalTable", table.node.default_child)
    resource.add_property_override("SSESpecification", {"SSEEnabled": True, "SSEType": "KMS"})
    resource.add_property_override("Replicas.0.SSESpecification", {"KMSMasterKeyId": key.key_arn})


def _text(name: str) -> dynamodb.Attribute:
    return dynamodb.Attribute(name=name, type=dynamodb.AttributeType.STRING)


def _index(name: str, projection: str) -> dynamodb.GlobalSecondaryIndexPropsV2:
    return dynamodb.GlobalSecondaryIndexPropsV2(
        index_name=name,
        partition_key=_text(schema.index_partition_key(name)),
        sort_key=_text(schema.index_sort_key(name)),
        projection_type=_PROJECTIONS[projection],
    )


def _transitions(expiry_days: int) -> list[s3.Transition]:
    # Colder storage bills a minimum stay, which only a long-lived archive earns back.
    if expiry_days <= 2 * _COLD_AFTER_DAYS:
        return []
    cold = s3.Transition(
        storage_class=s3.StorageClass.GLACIER_INSTANT_RETRIEVAL,
        transition_after=cdk.Duration.days(_COLD_AFTER_DAYS),
    )
    return [cold]
