"""Talking to a service over HTTP: JSON there and back, tried again while that may help."""

from __future__ import annotations

import email.utils
import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import httpx
import tenacity

from rollmill.errors import JobError, RewardError
from rollmill.tasks.rewards.rating import UnavailableError

LoadSecret = Callable[[str], str]
"""From the name of a secret that is kept elsewhere to its value."""

_RETRIED = frozenset({408, 425, 429, *range(500, 600)})
_HOPELESS = frozenset({401, 403, 404, 405, 407, 410})
_LONGEST_WAIT_SECONDS = 60.0


class _TryAgainError(Exception):
    """A request failed in a way that may pass; `seconds` is how long the service asks to wait."""

    def __init__(self, reason: str, seconds: float = 0.0) -> None:
        super().__init__(reason)
        self.seconds = seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLimits:
    """How long a request may take, and how long a service may be down before requests to it fail."""

    seconds_per_request: float
    seconds_until_failure: float


class Service:
    """One address that takes JSON. Safe to use from several threads.

    A request is tried again, after growing waits with jitter and no sooner than the service asks, on 408, 425, 429,
    5xx, time-outs and broken connections, until the service has been failing for `seconds_until_failure`. From then on
    each request is tried once, until one succeeds.
    """

    def __init__(self, url: str, api_key: str | None, limits: ServiceLimits) -> None:
        self.url = url
        self._api_key = api_key
        self._limits = limits
        self._failing_since: float | None = None
        self._lock = threading.Lock()

    def post(self, body: dict[str, Any]) -> Any:
        """Return the JSON that the service answers.

        Raises UnavailableError when it cannot be had whatever is asked, and RewardError when it refuses this request.
        """
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_TryAgainError),
            wait=_wait,
            stop=self._gives_up,
            reraise=True,
        )
        try:
            answer = retrying(self._post_once, body)
        except _TryAgainError as error:
            raise UnavailableError(f"{self.url} cannot be used: {error}") from error
        self._note(failing=False)
        return answer

    def _post_once(self, body: dict[str, Any]) -> Any:
        try:
            response = self._client.post(self.url, json=body)
        except httpx.TransportError as error:
            self._note(failing=True)
            raise _TryAgainError(f"{type(error).__name__}: {error}") from error
        if response.status_code in _RETRIED:
            self._note(failing=True)
            raise _TryAgainError(self._said(response), _retry_after(response))
        if response.status_code in _HOPELESS or response.is_redirect:
            raise UnavailableError(f"{self.url} cannot be used: {self._said(response)}")
        if response.is_error:
            raise RewardError(f"{self.url} refused the request: {self._said(response)}")
        try:
            return response.json()
        except ValueError as error:
            raise UnavailableError(
                f"{self.url} answered with something that is not JSON: {self._said(response)}"
            ) from error

    @cached_property
    def _client(self) -> httpx.Client:
        headers = {} if self._api_key is None else {"Authorization": f"Bearer {self._api_key}"}
        client = httpx.Client(timeout=self._limits.seconds_per_request, headers=headers)
        weakref.finalize(self, client.close)
        return client

    def _said(self, response: httpx.Response) -> str:
        """Return a response as a line that may be stored: some services repeat the key that they refuse."""
        text = response.text if self._api_key is None else response.text.replace(self._api_key, "***")
        return f"{response.status_code} {response.reason_phrase}: {text[:200]}"

    def _note(self, *, failing: bool) -> None:
        with self._lock:
            if not failing:
                self._failing_since = None
            elif self._failing_since is None:
                self._failing_since = time.monotonic()

    def _gives_up(self, state: tenacity.RetryCallState) -> bool:
        with self._lock:
            since = time.monotonic() if self._failing_since is None else self._failing_since
        return time.monotonic() + state.upcoming_sleep > since + self._limits.seconds_until_failure


def api_key(variable: str | None, secret: str | None, load_secret: LoadSecret | None) -> str | None:
    """Return the key that a job names, from the environment or from where secrets are kept, None when it names none.

    Raises JobError when it is not there; the message names where it was looked for, and never the key.
    """
    if variable is not None:
        if not os.environ.get(variable):
            raise JobError(f"the environment variable {variable}, which should hold the API key, is not set")
        return os.environ[variable]
    if secret is None:
        return None
    if load_secret is None:
        raise JobError(f"the secret {secret!r} can only be read within a flow; set api_key_env to use it elsewhere")
    return load_secret(secret)


_JITTER = tenacity.wait_random_exponential(multiplier=0.5, max=_LONGEST_WAIT_SECONDS)


def _wait(state: tenacity.RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome is not None else None
    asked = error.seconds if isinstance(error, _TryAgainError) else 0.0
    return max(_JITTER(state), asked)


def _retry_after(response: httpx.Response) -> float:
    """Return how many seconds the service asks to wait, 0 when it does not say or says something else."""
    value = response.headers.get("Retry-After", "")
    if value.isdigit():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return 0.0
