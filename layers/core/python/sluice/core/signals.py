"""Names of the metrics that the code emits and the dashboards and alarms read."""

from enum import StrEnum
from typing import Final, Protocol

METRICS_NAMESPACE: Final = "Sluice"


class Signal(StrEnum):
    """One count each; the unit is always Count."""

    ADMITTED = "Admitted"
    REFUSED = "Refused"
    CONTENDED = "Contended"
    UNAVAILABLE = "Unavailable"
    FAIL_OPEN_ADMISSIONS = "FailOpenAdmissions"
    GIVE_BACKS_LOST = "GiveBacksLost"
    CONFIGURATION_READS = "ConfigurationReads"
    SHARDS_SPLIT = "ShardsSplit"
    SHARDS_MERGED = "ShardsMerged"
    STORE_THROTTLES = "StoreThrottles"
    STORE_CONFLICTS = "StoreConflicts"
    STORE_AMBIGUOUS_WRITES = "StoreAmbiguousWrites"
    INTERNAL_ERRORS = "InternalErrors"
    JOB_STEPS = "JobSteps"
    JOBS_FAILED = "JobsFailed"
    LEGACY_ITEMS_MOVED = "LegacyItemsMoved"
    TOKENS_ISSUED = "TokensIssued"
    TOKENS_REFUSED = "TokensRefused"
    TOKENS_REVOKED = "TokensRevoked"
    LOGINS_THROTTLED = "LoginsThrottled"
    STANDING_READS = "StandingReads"
    STANDING_CACHE_HITS = "StandingCacheHits"
    STANDING_LOOKUPS_FAILED = "StandingLookupsFailed"
    SECRETS_TOO_OLD = "SecretsTooOld"
    STREAM_RECORDS = "StreamRecords"
    STREAM_FAILURES = "StreamFailures"
    STREAM_GAPS = "StreamGaps"
    SNAPSHOT_WRITES = "SnapshotWrites"
    ARCHIVED_RECORDS = "ArchivedRecords"
    ARCHIVED_BYTES = "ArchivedBytes"


class Meter(Protocol):
    """Counts signals. Services get one passed in, so that they need no metrics library."""

    def count(self, signal: Signal, amount: int = 1) -> None: ...
