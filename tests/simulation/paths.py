"""Which write path of the product a request is on, told by its shape alone."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

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
    MOVE_IN_PLACE = "move of an old bucket in place"
    MOVE = "move of old items"
    MIGRATION_START = "start of a migration"
    MIGRATION_END = "end of a migration"
    PURGE_START = "start of a purge"
    PURGE_ITEM = "purge of an item"
    PURGE_END = "end of a purge"
    JOB = "progress of a job"
    SETUP = "setup of a scenario"
    """What only happens before the faults begin."""


_ALONE = {
    "lease": Path.LEASE_PUT,
    "job": Path.JOB,
    "schema_version": Path.MIGRATION_END,
}


def path_of_put(request: PutRequest) -> Path | None:
    """None for what the product never puts."""
    item = request["Item"]
    if item.get("kind") == "bucket":
        return Path.MOVE_IN_PLACE if item.get("v") == 0 else Path.CREATE
    return _ALONE.get(str(item.get("kind")))


def path_of_update(request: UpdateRequest) -> Path:
    """Only buckets are updated outside of transactions."""
    expression, condition = request.get("UpdateExpression", ""), request.get("ConditionExpression", "")
    if "lh = " in expression:
        return Path.REBASE
    # A credit and an adjustment go to one incarnation; a debit outside of a transaction goes to whichever there is.
    if "gen = " in condition:
        return Path.ADJUST if "lh = " in condition else Path.GIVE_BACK
    return Path.FROM_FULL if "_tk = " in expression else Path.DEBIT


def path_of_delete(request: DeleteRequest) -> Path:
    return Path.REMOVE_BUCKET if "ConditionExpression" in request else Path.PURGE_ITEM


def path_of_transaction(writes: Sequence[TransactWrite]) -> Path:
    made = {str(write["Put"]["Item"].get("kind")): write["Put"]["Item"] for write in writes if "Put" in write}
    if "audit" in made:
        return _told(str(made["audit"].get("action")), made)
    if "lease" in made:
        return Path.LEASE
    if "idempotent_answer" in made:
        return Path.KEYED_ACQUIRE
    return _of_buckets(writes, made)


def _told(action: str, made: Mapping[str, Item]) -> Path:
    """What an audit event is about."""
    if action == "entity.delete":
        return Path.REMOVE_ENTITY
    if action == "entity.register":
        return Path.REGISTRATION
    if action.startswith("migration"):
        return Path.MIGRATION_START
    if action.startswith("namespace"):
        return Path.PURGE_START
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
    if deletes:
        return Path.PURGE_END if any("job_id" in one.get("ConditionExpression", "") for one in deletes) else Path.MOVE
    return Path.GATHER
