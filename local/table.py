"""The one table, made directly in an engine: for tests and benchmarks that need no stacks."""

from mypy_boto3_dynamodb import DynamoDBClient
from mypy_boto3_dynamodb.type_defs import GlobalSecondaryIndexUnionTypeDef

from sluice.repository import schema


def create_table(client: DynamoDBClient, name: str) -> None:
    """As the stack makes it, with TTL, and ready to use."""
    indexes: list[GlobalSecondaryIndexUnionTypeDef] = [
        {
            "IndexName": index,
            "KeySchema": [
                {"AttributeName": schema.index_partition_key(index), "KeyType": "HASH"},
                {"AttributeName": schema.index_sort_key(index), "KeyType": "RANGE"},
            ],
            "Projection": {"ProjectionType": "ALL" if projection == schema.PROJECT_ALL else "KEYS_ONLY"},
        }
        for index, projection in schema.INDEX_PROJECTIONS.items()
    ]
    keys = [schema.PARTITION_KEY, schema.SORT_KEY]
    for index in schema.INDEX_PROJECTIONS:
        keys += [schema.index_partition_key(index), schema.index_sort_key(index)]
    client.create_table(
        TableName=name,
        KeySchema=[
            {"AttributeName": schema.PARTITION_KEY, "KeyType": "HASH"},
            {"AttributeName": schema.SORT_KEY, "KeyType": "RANGE"},
        ],
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in keys],
        GlobalSecondaryIndexes=indexes,
        BillingMode="PAY_PER_REQUEST",
        StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
    )
    client.get_waiter("table_exists").wait(TableName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 30})
    enable_ttl(client, name)


def enable_ttl(client: DynamoDBClient, name: str) -> None:
    client.update_time_to_live(
        TableName=name, TimeToLiveSpecification={"Enabled": True, "AttributeName": schema.TTL_ATTRIBUTE}
    )
