"""Which write path of the product a request is on, told by its shape alone."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from sluice.repository import budget_keys
from sluice.repository.requests import DeleteRequest, PutRequest, TransactWrite, UpdateRequest
from sluice.repository.wire import Item


class Path(StrEnum):
    CREATE = "create"
    DEBIT = "debit"
    FROM_FULL = "debit from full"
    REBASE = "rebase"
    GIVE_BACK = "give-back"
    ADJUST = "adjust"
    GATHER = "gather"
    SPLIT = "split"
    MERGE = "merge"
    KEYED_ACQUIRE = "keyed acquire"
    LEASE_PUT = "lease alone"
    LEASE = "lease and buckets"
    REGISTRATION = "registration"
    ENTITY = "entity"
    LIMITS = "limits"
    REMOVE_ENTITY = "removal of an entity"
    REMOVE_BUCKET = "removal of a bucket"
    REMOVE_SHARDS = "removal of a split bucket"
    MOVE_IN_PLACE = "move of an old bucket in place"
    MOVE = "move of old items"
    MIGRATION_START = "start of a migration"
    MIGRATION_END = "end of a migration"
    PURGE_START = "start of a purge"
    PURGE_ITEM = "purge of an item"
    PURGE_END = "end of a purge"
    PURGE_REGISTERED = "purge of an item of the registry"
    JOB = "progress of a job"
    SNAPSHOT = "count of a batch"
    ARCHIVE = "object of the archive"
    EMPTY_ARCHIVE = "removal from the archive"
    ORG = "org"
    ORG_CHANGE = "change of an org"
    APP = "app"
    APP_CHANGE = "change of an app"
    REMOVE_APP = "removal of an app"
    ROTATE = "rotation of credentials"
    RENEW_HASH = "renewal of a hash"
    REFRESH = "use of a refresh token"
    REVOKE = "mark of a token or family"
    USAGE = "usage events"
    USAGE_WITH_LEASE = "usage events and leases"
    MARK = "mark of a total"
    TOTAL = "daily total"
    UNMARK = "removal of a mark"
    STICKY = "move of a selection"
    OVERRIDE = "override of a selection"
    HOLD = "hold"
    SETTLE = "usage events and holds"
    FREE = "release of a hold"
    EXPIRE = "end of an expired hold"
    BUDGET = "budget"
    LEDGER = "ledger by the defaults"
    LEDGER_TERMS = "defaults of a ledger"
    SWEEP_CURSOR = "cursor of the sweep"
    SETUP = "setup of a scenario"
    """What only happens before the faults begin."""


_ALONE = {
    "lease": Path.LEASE_PUT,
    "job": Path.JOB,
    "schema_version": Path.MIGRATION_END,
    "revoked": Path.REVOKE,
    "ledger": Path.LEDGER,
    "sweep": Path.SWEEP_CURSOR,
}


_ACTIONS = {
    "entity.delete": Path.REMOVE_ENTITY,
    "entity.register": Path.REGISTRATION,
    "app.delete": Path.REMOVE_APP,
    "credentials.rotate": Path.ROTATE,
    "label.put": Path.SETUP,
    "selection_override.put": Path.OVERRIDE,
    "selection_override.delete": Path.OVERRIDE,
    "budget.put": Path.BUDGET,
    "budget.delete": Path.BUDGET,
}

_MADE_OR_CHANGED = {"org.put": (Path.ORG, Path.ORG_CHANGE), "app.put": (Path.APP, Path.APP_CHANGE)}


def path_of_put(request: PutRequest) -> Path | None:
    """None for what the product never puts."""
    item = request["Item"]
    if item.get("kind") == "bucket":
        return Path.MOVE_IN_PLACE if item.get("v") == 0 else Path.CREATE
    return _ALONE.get(str(item.get("kind")))


def path_of_update(request: UpdateRequest) -> Path:  # noqa: PLR0911 - one line for each kind of write
    """Only buckets, snapshots, totals, selections, ledgers and a cursor are updated outside of transactions."""
    if str(request["Key"]["SK"]).startswith("#USAGE#"):
        return Path.SNAPSHOT
    if request["Key"] == budget_keys.SWEEP.attributes:
        return Path.SWEEP_CURSOR
    # By their partitions, whose first part is the namespace.
    _, _, partition = str(request["Key"]["PK"]).partition("/")
    if partition.startswith("TOTAL#"):
        return _of_total(request)
    if partition.startswith("STICKY#"):
        return Path.STICKY
    if partition.startswith("BUDGET#"):
        return Path.LEDGER_TERMS
    expression, condition = request.get("UpdateExpression", ""), request.get("ConditionExpression", "")
    if "lh = " in expression:
        return Path.REBASE
    # A credit and an adjustment go to one incarnation; a debit outside of a transaction goes to whichever there is.
    if "gen = " in condition:
        return Path.ADJUST if "lh = " in condition else Path.GIVE_BACK
    return Path.FROM_FULL if "_tk = " in expression else Path.DEBIT


def _of_total(request: UpdateRequest) -> Path:
    if request.get("UpdateExpression", "").startswith("REMOVE "):
        return Path.UNMARK
    return Path.MARK if "due" in request.get("ExpressionAttributeNames", {}).values() else Path.TOTAL


def path_of_delete(request: DeleteRequest) -> Path:
    return Path.REMOVE_BUCKET if "ConditionExpression" in request else Path.PURGE_ITEM


def path_of_transaction(writes: Sequence[TransactWrite]) -> Path:  # noqa: PLR0911 - one line for each kind of write
    made = {str(write["Put"]["Item"].get("kind")): write["Put"]["Item"] for write in writes if "Put" in write}
    if "audit" in made:
        return _told(str(made["audit"].get("action")), made)
    if "hold" in made:
        return Path.HOLD
    ends_hold = any("Update" in write and write["Update"]["Key"]["SK"] == budget_keys.HOLD for write in writes)
    if "usage_event" in made:
        return Path.SETTLE if ends_hold else Path.USAGE_WITH_LEASE if "lease" in made else Path.USAGE
    if ends_hold:
        return Path.FREE if "lease" in made else Path.EXPIRE
    if "lease" in made:
        return Path.LEASE
    if "idempotent_answer" in made:
        return Path.KEYED_ACQUIRE
    if "revoked" in made:
        return Path.REFRESH
    if "client" in made:
        return Path.RENEW_HASH
    return _of_buckets(writes, made)


def _told(action: str, made: Mapping[str, Item]) -> Path:
    """What an audit event is about."""
    if action in _ACTIONS:
        return _ACTIONS[action]
    if action.startswith("migration"):
        return Path.MIGRATION_START
    if action.startswith("namespace"):
        return Path.PURGE_START
    if action in _MADE_OR_CHANGED:
        return _MADE_OR_CHANGED[action]["client" not in made]
    return Path.ENTITY if "entity" in made else Path.LIMITS


def _of_buckets(writes: Sequence[TransactWrite], made: Mapping[str, Item]) -> Path:
    deletes: list[Any] = [write["Delete"] for write in writes if "Delete" in write]
    updates = [write["Update"].get("UpdateExpression", "") for write in writes if "Update" in write]
    if "namespace" in made:
        return Path.SETUP
    if "bucket" in made:
        return Path.MOVE if made["bucket"].get("v") == 0 else Path.SPLIT
    if any("shard_count = " in update for update in updates):
        return Path.MERGE
    return _of_deletes([one.get("ConditionExpression", "") for one in deletes]) if deletes else Path.GATHER


def _of_deletes(conditions: Sequence[str]) -> Path:
    if all("lh = " in one for one in conditions):
        return Path.REMOVE_SHARDS
    if all(one == "attribute_exists(PK)" for one in conditions):
        return Path.PURGE_REGISTERED
    return Path.PURGE_END if any("job_id" in one for one in conditions) else Path.MOVE
