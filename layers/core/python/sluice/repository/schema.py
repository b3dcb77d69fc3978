"""The table's shape: the only names that the stacks and the code must agree on."""

from typing import Final

PARTITION_KEY: Final = "PK"
SORT_KEY: Final = "SK"
TTL_ATTRIBUTE: Final = "ttl"

GSI1: Final = "GSI1"
GSI2: Final = "GSI2"
GSI3: Final = "GSI3"
GSI4: Final = "GSI4"

PROJECT_ALL: Final = "ALL"
PROJECT_KEYS_ONLY: Final = "KEYS_ONLY"

# KEYS_ONLY keeps a counter update from ever writing an index entry.
INDEX_PROJECTIONS: Final = {
    GSI1: PROJECT_ALL,
    GSI2: PROJECT_KEYS_ONLY,
    GSI3: PROJECT_KEYS_ONLY,
    GSI4: PROJECT_KEYS_ONLY,
}


def index_partition_key(index_name: str) -> str:
    return f"{index_name}PK"


def index_sort_key(index_name: str) -> str:
    return f"{index_name}SK"
