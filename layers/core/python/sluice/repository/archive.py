"""The one place that talks to the archive's bucket: it writes and reads objects of lines, and removes what a purge asks
for: every version of every object of a namespace, and nothing else.

What is needed of it stands in Protocols because there are two implementations: the bucket through boto3, and what tests
pass in.
"""

import gzip
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol, cast

from botocore.exceptions import ClientError, HTTPClientError, IncompleteReadError, ResponseStreamingError
from botocore.exceptions import ConnectionError as ClientConnectionError

from sluice.core.errors import Unavailable
from sluice.repository.keys import encode

# As many as one request can list or delete.
VERSIONS_MAX: Final = 1_000
_BUSY: Final = frozenset({"InternalError", "RequestTimeout", "ServiceUnavailable", "SlowDown", "OperationAborted"})
_GZIP: Final = "application/gzip"


class NotRemoved(Exception):
    """The bucket keeps a version that should go: somebody has to look at its rights and locks."""


class Archive(Protocol):
    def remove_some(self, namespace: str, limit: int) -> int:
        """Removes up to so many versions of a namespace's objects. Zero: there is nothing left."""
        ...


class ArchiveWriter(Protocol):
    def put_lines(self, name: str, lines: Iterable[bytes]) -> int:
        """Writes an object, or writes it again. Answers how many bytes it has."""
        ...


class ArchiveReader(Protocol):
    def names(self, prefix: str) -> Iterator[str]:
        """Of all objects that begin so, in their order."""
        ...

    def read(self, name: str) -> Iterator[bytes]:
        """The lines of an object, one after the other."""
        ...


def archive_prefix(namespace: str) -> str:
    """How the name of every object of a namespace begins, and none of another: its separator is in no encoded id."""
    return f"archive/ns={encode(namespace)}/"


class S3Archive:
    """`client`: boto3's for S3. The bucket keeps old versions: a plain delete would only hide them."""

    def __init__(self, client: Any, bucket: str) -> None:
        self._client = client
        self._bucket = bucket

    def remove_some(self, namespace: str, limit: int) -> int:
        """What was removed is not listed again, so the next call goes on without a cursor."""
        prefix = archive_prefix(namespace)
        with _typed():
            page = self._client.list_object_versions(
                Bucket=self._bucket, Prefix=prefix, MaxKeys=min(limit, VERSIONS_MAX)
            )
            found = _versions(page, prefix)
            if not found:
                return 0
            answer = self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": found, "Quiet": True})
        return len(found) - _left(answer.get("Errors") or ())

    def put_lines(self, name: str, lines: Iterable[bytes]) -> int:
        """The same lines make the same bytes. A large object goes in several requests, as boto3 decides."""
        packed = io.BytesIO()
        # Neither a name nor a time inside: both would differ from one delivery to the next.
        with gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as lines_file:
            for line in lines:
                lines_file.write(line)
                lines_file.write(b"\n")
        size = packed.tell()
        packed.seek(0)
        with _typed():
            self._client.upload_fileobj(packed, self._bucket, name, ExtraArgs={"ContentType": _GZIP})
        return size

    def names(self, prefix: str) -> Iterator[str]:
        with _typed():
            for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix):
                yield from (found["Key"] for found in page.get("Contents") or ())

    def read(self, name: str) -> Iterator[bytes]:
        """Unpacked while it comes: no object is ever held as a whole."""
        with _typed():
            body = self._client.get_object(Bucket=self._bucket, Key=name)["Body"]
            with body, gzip.GzipFile(fileobj=body, mode="rb") as lines_file:
                for line in lines_file:
                    yield line.removesuffix(b"\n")


@contextmanager
def _typed() -> Iterator[None]:
    """What passes becomes Unavailable. Anything else is a bug or a missing right, and passes through."""
    try:
        yield
    except (ClientConnectionError, HTTPClientError, IncompleteReadError, ResponseStreamingError) as error:
        raise Unavailable(type(error).__name__) from error
    except ClientError as error:
        if _is_passing(error):
            raise Unavailable(_code(error)) from error
        raise


def _versions(page: Mapping[str, Any], prefix: str) -> list[dict[str, str]]:
    listed = [*(page.get("Versions") or ()), *(page.get("DeleteMarkers") or ())]
    # Whatever the listing says: nothing of anybody else is ever named in a deletion.
    return [
        {"Key": version["Key"], "VersionId": version["VersionId"]}
        for version in listed
        if version["Key"].startswith(prefix)
    ]


def _left(errors: Sequence[Mapping[str, str]]) -> int:
    """How many versions the bucket is only too busy to remove now. Only the codes are told: keys name a tenant."""
    codes = {error["Code"] for error in errors}
    if codes - _BUSY:
        raise NotRemoved(", ".join(sorted(codes - _BUSY)))
    return len(errors)


def _is_passing(error: ClientError) -> bool:
    status = cast("Mapping[str, Any]", error.response)["ResponseMetadata"]["HTTPStatusCode"]
    return _code(error) in _BUSY or status >= 500


def _code(error: ClientError) -> str:
    return str(cast("Mapping[str, Any]", error.response)["Error"]["Code"])
