"""The archive's bucket in memory, behind the simulated network: what boto3 would answer, or raise.

The product's own `S3Archive` speaks to it, so that the bytes, and what an error means, are the product's.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BytesIO
from typing import IO, Any, Final, NamedTuple, TypeVar

from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError

from sluice.core.errors import Ambiguous
from sluice.repository.retries import Conflict, NotSent, Throttled
from tests.simulation.network import Network
from tests.simulation.paths import Path
from tests.simulation.scheduler import Process
from tests.simulation.store import Call

T = TypeVar("T")

URL: Final = "simulated"
# Few, so that emptying a bucket takes several requests.
LISTED_MOST: Final = 2


class Put(NamedTuple):
    """An object that was written. `after`: how many changes the table had seen by then."""

    name: str
    content: bytes
    after: int


class SimulatedBucket:
    """Keeps old versions, as the archive does. `puts`: all there ever were, also of what was removed since."""

    def __init__(self, changes: Callable[[], int]) -> None:
        self.puts: list[Put] = []
        self.versions: dict[str, list[tuple[str, bytes]]] = {}
        """By name: the id of each version with its content, the newest last."""
        self._changes = changes

    def put(self, name: str, content: bytes) -> None:
        self.puts.append(Put(name, content, self._changes()))
        self.versions.setdefault(name, []).append((str(len(self.puts)), content))

    def listed(self, prefix: str, limit: int) -> list[dict[str, str]]:
        found = [
            {"Key": name, "VersionId": version}
            for name in sorted(self.versions)
            if name.startswith(prefix)
            for version, _ in self.versions[name]
        ]
        return found[: min(limit, LISTED_MOST)]

    def remove(self, named: Sequence[Mapping[str, str]]) -> None:
        """What is gone is no error."""
        for one in named:
            name, version = one["Key"], one["VersionId"]
            left = [kept for kept in self.versions.get(name, ()) if kept[0] != version]
            self.versions[name] = left
            if not left:
                del self.versions[name]


class BucketReader:
    """A client for whoever looks at the bucket from outside of the simulation: nothing fails and nothing takes time."""

    def __init__(self, bucket: SimulatedBucket) -> None:
        self._bucket = bucket

    def get_paginator(self, _operation: str) -> "BucketReader":
        return self

    def paginate(self, *, Bucket: str, Prefix: str) -> Iterator[dict[str, Any]]:  # noqa: N803 - as boto3 names them
        del Bucket
        yield {"Contents": [{"Key": name} for name in sorted(self._bucket.versions) if name.startswith(Prefix)]}

    def get_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:  # noqa: N803 - as boto3 names them
        del Bucket
        return {"Body": BytesIO(self._bucket.versions[Key][-1][1])}


class BucketConnection:
    """The client of one process."""

    def __init__(self, network: Network, process: Process, bucket: SimulatedBucket) -> None:
        self._network = network
        self._process = process
        self._bucket = bucket

    def upload_fileobj(self, file: IO[bytes], _bucket: str, name: str, **_named: Any) -> None:
        content = file.read()
        self._carry(
            Call("put_object", name, writes=True, path=Path.ARCHIVE), lambda: self._bucket.put(name, content), name
        )

    def list_object_versions(self, **named: Any) -> dict[str, Any]:
        prefix, limit = named["Prefix"], named["MaxKeys"]
        call = Call("list_object_versions", prefix, writes=False)
        return {"Versions": self._carry(call, lambda: self._bucket.listed(prefix, limit), prefix)}

    def delete_objects(self, **named: Any) -> dict[str, Any]:
        objects = named["Delete"]["Objects"]
        call = Call("delete_objects", objects[0]["Key"], writes=True, path=Path.EMPTY_ARCHIVE)
        self._carry(call, lambda: self._bucket.remove(objects), objects[0]["Key"])
        return {}

    def _carry(self, call: Call, apply: Callable[[], T], about: str) -> T:
        try:
            return self._network.carry(self._process, call, apply)
        except Throttled as throttled:
            raise _client_error("SlowDown", 503, call.verb) from throttled
        except Conflict as conflict:
            raise _client_error("OperationAborted", 409, call.verb) from conflict
        except NotSent as not_sent:
            raise EndpointConnectionError(endpoint_url=f"{URL}/{about}") from not_sent
        except Ambiguous as lost:
            raise ReadTimeoutError(endpoint_url=f"{URL}/{about}") from lost


def _client_error(code: str, status: int, operation: str) -> ClientError:
    answer: Any = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, operation)
