"""How we talk to S3 and to what answers like it: a client with timeouts, and its errors as ours.

The only importer of the driver. Credentials come the way AWS's own tools find them (environment, profile, role),
never with an address. The driver repeats a request by itself when an answer is missing or says 5xx, so a write
with a condition may meet its own first attempt: whoever gets `Conflict` must look what is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
    raise Unavailable("S3's driver is not installed here: pip install 'strandline[s3]'") from cause

_CONNECT_SECONDS = 5
_ANSWER_SECONDS = 60
_CONNECTIONS = 32

# The product's codes, then its HTTP statuses, by what they mean to us.
_CODES: dict[str, type[StrandlineError]] = {
    **dict.fromkeys(("404", "NotFound", "NoSuchKey", "NoSuchBucket", "NoSuchUpload"), NotFound),
    **dict.fromkeys(("XMinioStorageFull", "QuotaExceeded", "InsufficientStorage", "507"), StorageFull),
}
_STATUSES: dict[int, type[StrandlineError]] = {
    401: Forbidden,
    403: Forbidden,
    409: Unavailable,  # a condition that could not be checked just now
    412: Conflict,
    429: Unavailable,
    503: Unavailable,
}
_SERVER_ERROR = 500


def client(*, endpoint: str | None, region: str | None, profile: str | None) -> Any:
    """A thread-safe client; what is not given is found by AWS's own rules."""
    # Other products seldom have a host name per bucket.
    style = {"addressing_style": "path"} if endpoint else {}
    config = Config(
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_ANSWER_SECONDS,
        retries={"mode": "standard", "total_max_attempts": 3},
        max_pool_connections=_CONNECTIONS,
        s3=style,
    )
    try:
        session = Session(profile_name=profile, region_name=region)
        return session.client("s3", endpoint_url=endpoint, config=config)
    except (BotoCoreError, ValueError) as error:
        raise Invalid(f"S3 cannot be used like this: {error}") from error


@contextmanager
def mapped(what: str, *, changes: bool = False) -> Iterator[None]:
    """The driver's errors as ours; `what` is said to be the place."""
    try:
        yield
    except ClientError as error:
        raise _refused(error, what, changes=changes) from error
    except BotoCoreError as error:
        raise _unanswered(error, what, changes=changes) from error


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
