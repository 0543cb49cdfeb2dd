"""The client for S3 and compatible services, with timeouts and error mapping.

The only importer of the driver. Credentials are found as AWS's own tools find them (environment, profile, role);
they are never part of an address. The driver retries a request by itself when the answer is missing or 5xx, so a
conditional write may conflict with its own first attempt: after `Conflict` the caller must check what is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from strandline.errors import (
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    OutcomeUnknown,
    StorageFull,
    StrandlineError,
    Unavailable,
)

try:
    from boto3.session import Session
    from botocore.config import Config
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        ConnectTimeoutError,
        EndpointConnectionError,
        NoCredentialsError,
        PartialCredentialsError,
    )
except ImportError as cause:
    raise Unavailable("the S3 driver is not installed; run pip install 'strandline[s3]'") from cause

_CONNECT_SECONDS = 5
_ANSWER_SECONDS = 60
_ATTEMPTS = 3
_CONNECTIONS = 32
_DELETE_KEYS = 1000

# Error codes of S3, then HTTP statuses, and our errors for them.
_CODES: dict[str, type[StrandlineError]] = {
    **dict.fromkeys(("404", "NotFound", "NoSuchKey", "NoSuchBucket", "NoSuchUpload"), NotFound),
    **dict.fromkeys(("XMinioStorageFull", "QuotaExceeded", "InsufficientStorage", "507"), StorageFull),
}
_STATUSES: dict[int, type[StrandlineError]] = {
    401: Forbidden,
    403: Forbidden,
    409: Unavailable,  # the condition could not be checked at the moment
    412: Conflict,
    429: Unavailable,
    503: Unavailable,
}
_SERVER_ERROR = 500


@dataclass(frozen=True)
class ObjectHead:
    size: int
    etag: str
    metadata: Mapping[str, str]
    modified_ms: int


class Bucket:
    """One bucket. Thread-safe. Keys are complete; NotFound if a key does not exist."""

    def __init__(self, name: str, *, endpoint: str | None, region: str | None, profile: str | None) -> None:
        """Arguments that are None are found as AWS's own tools find them."""
        self._name = name
        # Compatible services seldom have a host name per bucket.
        style = {"addressing_style": "path"} if endpoint else {}
        config = Config(
            connect_timeout=_CONNECT_SECONDS,
            read_timeout=_ANSWER_SECONDS,
            retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
            max_pool_connections=_CONNECTIONS,
            s3=style,
        )
        try:
            session = Session(profile_name=profile, region_name=region)
            self._client = session.client("s3", endpoint_url=endpoint, config=config)
        except (BotoCoreError, ValueError) as error:
            raise Invalid(f"the S3 client cannot be configured: {error}") from error

    def head(self, key: str) -> ObjectHead | None:
        try:
            found = self._call("head_object", key)
        except NotFound:
            return None
        modified_ms = int(found["LastModified"].timestamp() * 1000)
        return ObjectHead(found["ContentLength"], found["ETag"], found["Metadata"], modified_ms)

    def get(self, key: str) -> tuple[bytes, str]:
        """The whole object and its ETag."""
        with self._mapped(key):
            found = self._client.get_object(Bucket=self._name, Key=key)
            return found["Body"].read(), found["ETag"]

    def get_range(self, key: str, etag: str, first: int, size: int) -> bytes:
        """Part of an object. Conflict if its ETag is not `etag` any more."""
        span = f"bytes={first}-{first + size - 1}"
        with self._mapped(key):
            found = self._client.get_object(Bucket=self._name, Key=key, Range=span, IfMatch=etag)
            content: bytes = found["Body"].read()
            return content

    def put(self, key: str, data: bytes, *, etag: str | None, metadata: Mapping[str, str]) -> None:
        """Replace the object with that ETag, or create it if `etag` is None. Conflict or NotFound otherwise."""
        condition = {"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag}
        self._call("put_object", key, changes=True, Body=data, Metadata=metadata, **condition)

    def begin(self, key: str, metadata: Mapping[str, str]) -> str:
        """Start a multipart upload and return its id. The object is not visible before `complete`."""
        return str(self._call("create_multipart_upload", key, changes=True, Metadata=metadata)["UploadId"])

    def send_part(self, key: str, upload: str, number: int, data: bytes) -> str:
        """Upload a part and return its ETag for `complete`."""
        part = {"UploadId": upload, "PartNumber": number, "Body": data}
        return str(self._call("upload_part", key, changes=True, **part)["ETag"])

    def copy_part(self, key: str, upload: str, number: int, source: str, etag: str, span: str) -> str:
        """Like `send_part`, but copy the bytes from an object with this ETag; `span` is like `bytes=0-9`."""
        part = {"UploadId": upload, "PartNumber": number, "CopySourceRange": span}
        origin = {"CopySource": {"Bucket": self._name, "Key": source}, "CopySourceIfMatch": etag}
        copied = self._call("upload_part_copy", key, changes=True, **part, **origin)
        return str(copied["CopyPartResult"]["ETag"])

    def complete(self, key: str, upload: str, parts: Sequence[str]) -> None:
        """Create the object from its parts. Conflict if an object of that key exists."""
        listed = {"Parts": [{"ETag": etag, "PartNumber": number} for number, etag in enumerate(parts, start=1)]}
        arguments = {"UploadId": upload, "MultipartUpload": listed, "IfNoneMatch": "*"}
        self._call("complete_multipart_upload", key, changes=True, **arguments)

    def abort(self, key: str, upload: str) -> None:
        """Abort an upload; do nothing if it is already completed or aborted."""
        with suppress(NotFound):
            self._call("abort_multipart_upload", key, changes=True, UploadId=upload)

    def uploads(self, prefix: str) -> list[tuple[str, str]]:
        """Key and id of every upload that is neither completed nor aborted."""
        found = self._pages("list_multipart_uploads", "Uploads", Prefix=prefix)
        return [(item["Key"], item["UploadId"]) for item in found]

    def objects(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Key and size of every object below the prefix."""
        return ((item["Key"], item["Size"]) for item in self._pages("list_objects_v2", "Contents", Prefix=prefix))

    def folder(self, prefix: str) -> tuple[list[tuple[str, int]], list[str]]:
        """The objects directly below the prefix with their sizes, and the prefixes of the next level."""
        objects: list[tuple[str, int]] = []
        deeper: list[str] = []
        with self._mapped(prefix):
            pages = self._client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self._name, Prefix=prefix, Delimiter="/"):
                objects += [(item["Key"], item["Size"]) for item in page.get("Contents", ())]
                deeper += [item["Prefix"] for item in page.get("CommonPrefixes", ())]
        return objects, deeper

    def _pages(self, operation: str, member: str, **arguments: str) -> Iterator[dict[str, Any]]:
        with self._mapped(arguments["Prefix"]):
            for page in self._client.get_paginator(operation).paginate(Bucket=self._name, **arguments):
                yield from page.get(member, ())

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; keys that do not exist are ignored."""
        keys = iter(keys)
        while batch := [{"Key": key} for key in islice(keys, _DELETE_KEYS)]:
            with self._mapped(batch[0]["Key"], changes=True):
                done = self._client.delete_objects(Bucket=self._name, Delete={"Objects": batch, "Quiet": True})
            if failed := done.get("Errors"):
                raise Unavailable(f"{failed[0]['Key']} was not deleted: {failed[0].get('Message')}", retry_after=2)

    def _call(self, operation: str, key: str, *, changes: bool = False, **arguments: Any) -> dict[str, Any]:
        with self._mapped(key, changes=changes):
            answer: dict[str, Any] = getattr(self._client, operation)(Bucket=self._name, Key=key, **arguments)
            return answer

    @contextmanager
    def _mapped(self, key: str, *, changes: bool = False) -> Iterator[None]:
        what = f"s3://{self._name}/{key}"
        try:
            yield
        except ClientError as error:
            raise _refused(error, what, changes=changes) from error
        except BotoCoreError as error:
            raise _unanswered(error, what, changes=changes) from error

    def close(self) -> None:
        self._client.close()


def _refused(error: ClientError, what: str, *, changes: bool) -> StrandlineError:
    answer = error.response.get("Error", {})
    code, status = str(answer.get("Code", "")), int(error.response["ResponseMetadata"]["HTTPStatusCode"])
    kind = _CODES.get(code) or _STATUSES.get(status) or Invalid
    if kind is Invalid and status >= _SERVER_ERROR:
        kind = OutcomeUnknown if changes else Unavailable
    patience = {"retry_after": 1} if kind is Unavailable else {}
    return kind(f"{what}: {code} {answer.get('Message', '')}".strip(), **patience)


def _unanswered(error: Exception, what: str, *, changes: bool) -> StrandlineError:
    text = f"{what}: {error}"
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return Forbidden(f"{text}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or a role")
    if changes and not isinstance(error, EndpointConnectionError | ConnectTimeoutError):
        return OutcomeUnknown(text)
    return Unavailable(text, retry_after=5)
