"""The archive as a table that Athena can ask, where an environment wants that."""

from typing import Final

import aws_cdk as cdk
from aws_cdk import aws_glue as glue
from aws_cdk import aws_s3 as s3
from constructs import Construct

from sluice.core.archiving import ARCHIVED_TYPES
from stacks.settings import Settings

TABLE: Final = "archive"
_FIRST_DAY: Final = "2026-01-01"
_HIVE: Final = "org.apache.hadoop.hive"


class ArchiveCatalog(Construct):
    """One column: a whole line. The attributes differ by type, and those of a snapshot by its limits.

    The partitions are computed from the query, so that nothing has to notice new days. A query must name the namespace:
    nobody asks about all tenants by accident.
    """

    def __init__(self, scope: Construct, construct_id: str, *, settings: Settings, archive: s3.Bucket) -> None:
        super().__init__(scope, construct_id)
        account = cdk.Stack.of(self).account
        database = glue.CfnDatabase(
            self,
            "Database",
            catalog_id=account,
            database_input=glue.CfnDatabase.DatabaseInputProperty(
                name=f"sluice_{settings.name}", description=f"Sluice {settings.name}: what left the table"
            ),
        )
        location = f"s3://{archive.bucket_name}/archive/"
        glue.CfnTable(
            self,
            "Table",
            catalog_id=account,
            database_name=database.ref,
            table_input=glue.CfnTable.TableInputProperty(
                name=TABLE,
                description="One line of JSON per record; some stand there twice",
                table_type="EXTERNAL_TABLE",
                partition_keys=[_text("ns"), _text("type"), _text("dt")],
                parameters=_projection(location),
                storage_descriptor=_storage(location),
            ),
        )


def _projection(location: str) -> dict[str, str]:
    return {
        "EXTERNAL": "TRUE",
        "projection.enabled": "true",
        "projection.ns.type": "injected",
        "projection.type.type": "enum",
        "projection.type.values": ",".join(ARCHIVED_TYPES),
        "projection.dt.type": "date",
        "projection.dt.format": "yyyy-MM-dd",
        "projection.dt.range": f"{_FIRST_DAY},NOW+1DAY",
        "projection.dt.interval": "1",
        "projection.dt.interval.unit": "DAYS",
        "storage.location.template": f"{location}ns=${{ns}}/type=${{type}}/dt=${{dt}}",
    }


def _storage(location: str) -> glue.CfnTable.StorageDescriptorProperty:
    return glue.CfnTable.StorageDescriptorProperty(
        location=location,
        columns=[_text("line")],
        input_format="org.apache.hadoop.mapred.TextInputFormat",
        output_format=f"{_HIVE}.ql.io.HiveIgnoreKeyTextOutputFormat",
        serde_info=glue.CfnTable.SerdeInfoProperty(
            serialization_library=f"{_HIVE}.serde2.RegexSerDe",
            parameters={"input.regex": "(.*)", "serialization.format": "1"},
        ),
    )


def _text(name: str) -> glue.CfnTable.ColumnProperty:
    return glue.CfnTable.ColumnProperty(name=name, type="string")
