"""Objects of an S3 bucket, through s3fs, with one layer of retries that knows what may be repeated."""

from __future__ import annotations

import email.utils
import http.client
import os
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import aiohttp
import s3fs
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, NoCredentialsError
from botocore.exceptions import ConnectionError as BotoConnectionError
from botocore.parsers import ResponseParserError
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from rollmill.errors import StoreAccessError
from rollmill.storage.objects import Objects, StoredObject, exists, missing

Result = TypeVar("Result")

_SECONDS_PATIENCE = 60.0
_SECONDS_PATIENCE_RUNNING = 150.0
_SECONDS_PATIENCE_CHECKING = 3.0
_LARGEST_SINGLE_PUT = 4 * 2**30
_TRANSIENT_STATUSES = {408, 409, 425, 429, 500, 502, 503, 504}
_TRANSIENT_CODES = {"SlowDown", "RequestTimeout", "OperationAborted", "ConditionalRequestConflict", "InternalError"}
_CLOCK_CODES = {"RequestTimeTooSkewed", "RequestExpired"}
_TRANSPORT_FAULTS = (
    TimeoutError,
    ConnectionError,
    HTTPClientError,
    BotoConnectionError,
    ResponseParserError,
    aiohttp.ClientError,
    http.client.HTTPException,
)
_FAULTS = (*_TRANSPORT_FAULTS, OSError, BotoCoreError, ClientError, ValueError)


class S3Objects(Objects):
    """Objects below a prefix of one bucket.

    Connections belong to the process that made them: after a fork the child makes its own. Time-outs, broken
    connections, 409, 429 and 5xx are tried again with growing random pauses for `seconds_patience`.
    """

    def __init__(
        self, url: str, storage_options: dict[str, Any] | None, seconds_patience: float = _SECONDS_PATIENCE
    ) -> None:
        super().__init__(url)
        self.bucket, _, self.prefix = self.url.removeprefix("s3://").partition("/")
        if not self.bucket:
            raise StoreAccessError(f"store {url}: name a bucket, as in s3://bucket/prefix")
        self._storage_options = dict(storage_options or {})
        self._seconds_patience = seconds_patience
        self._connections: dict[int, s3fs.S3FileSystem] = {}  # by process; a parent's is never used, nor closed, here

    def __reduce__(self) -> tuple[type[S3Objects], tuple[str, dict[str, Any], float]]:
        return S3Objects, (self.url, self._storage_options, self._seconds_patience)

    def get(self, key: str) -> bytes:
        try:
            data: bytes = self._tried(key, lambda s3: s3.cat_file(self._path(key), max_concurrency=1))
        except FileNotFoundError as error:
            if _code(error) == "NoSuchBucket":
                raise self._explained(key, error) from error
            raise missing(self, key) from error
        return data

    def create(self, key: str, data: bytes) -> None:
        try:
            self._put_whole(key, data, "create")
        except FileExistsError as error:
            if self.get(key) != data:
                raise exists(self, key) from error

    def put(self, key: str, data: bytes) -> None:
        self._put_whole(key, data, "overwrite")

    def size(self, key: str) -> int | None:
        try:
            reply = self._call(key, "head_object", Key=self._key(key))
        except FileNotFoundError:
            return None
        return int(reply["ContentLength"])

    def scan(self, prefix: str) -> list[StoredObject]:
        found: list[StoredObject] = []
        page: dict[str, Any] = {}
        while True:
            reply = self._call(prefix, "list_objects_v2", Prefix=self._key(prefix), **page)
            found += [self._stored(entry) for entry in reply.get("Contents", [])]
            if not reply.get("IsTruncated"):
                return sorted(found, key=lambda stored: stored.key)
            page = {"ContinuationToken": reply["NextContinuationToken"]}

    def delete(self, key: str) -> None:
        self._call(key, "delete_object", Key=self._key(key))

    def impatient(self) -> S3Objects:
        return S3Objects(self.url, self._storage_options, _SECONDS_PATIENCE_CHECKING)

    def patient(self) -> S3Objects:
        return S3Objects(self.url, self._storage_options, _SECONDS_PATIENCE_RUNNING)

    def check_reachable(self) -> None:
        """Ask for the bucket, for some servers make a missing one on a PUT."""
        try:
            self._call("", "head_bucket")
        except FileNotFoundError as error:
            raise self._explained("", error) from error
        except StoreAccessError as error:
            if not isinstance(error.__cause__, PermissionError):  # a run does not need the right to ask for a bucket
                raise

    def _put_whole(self, key: str, data: bytes, mode: str) -> None:
        """Put an object with one request, which is done or not, and leaves no parts when it is cut short."""
        if len(data) > _LARGEST_SINGLE_PUT:
            raise StoreAccessError(
                f"{self.where(key)}: {len(data)} bytes are too many for one PUT; make shards smaller"
            )
        try:
            self._tried(key, lambda s3: s3.pipe_file(self._path(key), data, mode=mode, chunksize=len(data) + 1))
        except FileNotFoundError as error:
            raise self._explained(key, error) from error

    def _stored(self, entry: dict[str, Any]) -> StoredObject:
        return StoredObject(entry["Key"][len(self._key("")) :], int(entry["Size"]), entry["LastModified"])

    def _key(self, key: str) -> str:
        return f"{self.prefix}/{key}" if self.prefix else key

    def _path(self, key: str) -> str:
        return f"{self.bucket}/{self._key(key)}"

    def _call(self, key: str, method: str, **arguments: Any) -> dict[str, Any]:
        reply: dict[str, Any] = self._tried(key, lambda s3: s3.call_s3(method, Bucket=self.bucket, **arguments))
        return reply

    def _tried(self, key: str, action: Callable[[s3fs.S3FileSystem], Result]) -> Result:
        """Act, again while the fault is one that passes.

        Raises FileNotFoundError and FileExistsError as they are, and everything else as StoreAccessError.
        """
        retrying = Retrying(
            retry=retry_if_exception(_is_transient),
            wait=wait_random_exponential(multiplier=0.2, max=10),
            stop=stop_after_delay(self._seconds_patience),
            reraise=True,
        )
        try:
            return retrying(lambda: action(self._connection()))
        except (FileNotFoundError, FileExistsError):
            raise
        except _FAULTS as error:
            if _is_precondition_failure(error):
                raise FileExistsError(key) from error
            raise self._explained(key, error) from error

    def _connection(self) -> s3fs.S3FileSystem:
        process = os.getpid()
        if process not in self._connections:
            self._connections.setdefault(process, self._connect())
        return self._connections[process]

    def _connect(self) -> s3fs.S3FileSystem:
        config = {
            "connect_timeout": min(5.0, self._seconds_patience),
            "read_timeout": min(30.0, max(10.0, self._seconds_patience)),
            "max_pool_connections": 32,
            "retries": {"total_max_attempts": 1},
            **self._storage_options.get("config_kwargs", {}),
        }
        options = {**self._storage_options, "config_kwargs": config}
        filesystem = s3fs.S3FileSystem(**options, use_listings_cache=False, skip_instance_cache=True)
        filesystem.retries = 1  # the retries are ours: see `_tried`
        return filesystem

    def _explained(self, key: str, error: Exception) -> StoreAccessError:
        """Return one line that says which of the usual reasons this is, and what to do."""
        reason = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, FileNotFoundError):
            advice = f"there is no bucket {self.bucket}; make it, or correct the address"
        elif _code(error) in _CLOCK_CODES:
            advice = f"{_clock_difference(error)}; set this machine's clock, best by NTP"
        elif isinstance(error, (PermissionError, NoCredentialsError)):
            advice = (
                f"access refused ({reason}); check key and secret (storage options, or AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY) and what they may do in this bucket"
            )
        elif isinstance(error, _TRANSPORT_FAULTS):
            advice = f"no answer ({reason}); check that the server runs, and endpoint_url or AWS_ENDPOINT_URL"
        else:
            advice = reason
        return StoreAccessError(f"store {self.url}: {advice}" + (f" [at {key}]" if key else ""))


def _is_transient(error: BaseException) -> bool:
    response = _response(error)
    if response:
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return status in _TRANSIENT_STATUSES or _code(error) in _TRANSIENT_CODES
    return isinstance(error, _TRANSPORT_FAULTS)


def _clock_difference(error: BaseException) -> str:
    """Return by how much this machine's clock is wrong, as far as the reply to a refused request tells."""
    theirs = _response(error).get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    if theirs is None:
        return "this machine's clock and the store's differ by more than S3 allows"
    seconds = (datetime.now(UTC) - email.utils.parsedate_to_datetime(theirs)).total_seconds()
    side = "ahead of" if seconds > 0 else "behind"
    return f"this machine's clock is {abs(seconds) / 60:.0f} minutes {side} the store's, more than S3 allows"


def _is_precondition_failure(error: BaseException) -> bool:
    return _code(error) in ("PreconditionFailed", "412")


def _code(error: BaseException) -> str:
    """Return the server's own error code; empty when the server gave none."""
    return str(_response(error).get("Error", {}).get("Code", ""))


def _response(error: BaseException) -> dict[str, Any]:
    """Return the server's reply, which s3fs keeps in the cause; empty when there was none."""
    return getattr(error.__cause__, "response", None) or {}
