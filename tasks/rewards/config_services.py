"""The job sections of the rewards that run programs, call services or load models."""

from __future__ import annotations

import re
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, field_validator, model_validator

from rollmill.tasks.rewards.fields import AnswerFields, RewardFields, job_errors_are_value_errors
from rollmill.tasks.rewards.judge import DEFAULT_PATTERN, compile_template


class CodeConfig(RewardFields):
    """1 when the last Python code block of the answer passes the tests of its prompt, else 0."""

    type: Literal["code"]
    tests_column: str | None = Field(
        default=None,
        min_length=1,
        description="The prompt column that holds the tests. Unset takes the first of tests, test, test_list, "
        "test_cases and input_output that a prompt has.",
    )
    partial: bool = Field(default=False, description="The reward is the share of tests passed, not all or nothing.")
    seconds_per_test: float = Field(
        default=5.0,
        gt=0,
        le=3600,
        description="Longest time one test may take; the program is then ended and fails it.",
    )
    memory_mb: int = Field(default=1024, ge=64, description="Most memory, in MiB, that the program may ask for.")
    file_mb: int = Field(default=16, ge=1, description="Largest file, in MiB, that the program may write.")
    max_processes: int = Field(
        default=64, ge=1, description="Most processes and threads at once, which the system does not count for root."
    )
    concurrency: int = Field(default=4, ge=1, le=256, description="Programs that run at once.")


class _ServiceFields(BaseModel):
    """What every reward has that asks a service."""

    url: str = Field(description="The address that requests are posted to.")
    api_key_env: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="Name of the environment variable that holds the API key, where the scoring runs. The key itself "
        "belongs in no job.",
    )
    api_key_secret: str | None = Field(
        default=None, min_length=1, description="Name of the Prefect Secret block that holds the API key."
    )
    concurrency: int = Field(default=4, ge=1, le=256, description="Requests under way at once.")
    seconds_per_request: float = Field(
        default=60.0, gt=0, le=86400, description="Longest time one request may take before it is tried again."
    )
    seconds_until_failure: float = Field(
        default=300.0,
        ge=0,
        le=86400,
        description="How long the service may be failing (408, 425, 429, 5xx, time-outs, no connection) before "
        "answers fail; until then requests are tried again.",
    )

    @field_validator("url")
    @classmethod
    def _is_an_address_without_a_key(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("url must begin with http:// or https:// and name a host")
        if parts.username or parts.password:
            raise ValueError("url must not hold a user or a password: name where the key is with api_key_env")
        return url

    @model_validator(mode="after")
    def _one_key(self) -> _ServiceFields:
        if self.api_key_env is not None and self.api_key_secret is not None:
            raise ValueError("give api_key_env or api_key_secret, not both")
        return self


class HttpConfig(_ServiceFields, RewardFields):
    """What a service of your own gives for a batch of answers, posted as JSON."""

    type: Literal["http"]
    columns: list[str] = Field(default_factory=list, description="The prompt columns that the service is sent.")
    answers_per_call: int = Field(
        default=64, ge=1, description="Most answers that one request holds; groups stay whole."
    )


class JudgeConfig(_ServiceFields, AnswerFields):
    """The score that a language model behind an OpenAI-compatible service gives one answer."""

    type: Literal["judge"]
    url: str = Field(description="The address of chat completions, such as http://localhost:8000/v1/chat/completions.")
    model: str = Field(min_length=1, description="The name of the model that judges.")
    template: str = Field(
        min_length=1,
        description="What it is asked, as a Jinja template of prompt, response, ground_truth and the prompt's columns.",
    )
    pattern: str = Field(
        default=DEFAULT_PATTERN,
        description="A regular expression whose only group catches the score; its last place in the reply counts.",
    )
    lowest: float = Field(default=0.0, allow_inf_nan=False, description="A score below this is a failure.")
    highest: float = Field(default=10.0, allow_inf_nan=False, description="A score above this is a failure.")
    request: dict[str, Any] = Field(
        default_factory=lambda: {"temperature": 0.0, "max_tokens": 512},
        description="Further fields of the request, such as temperature and max_tokens.",
    )

    @model_validator(mode="after")
    def _can_be_used(self) -> JudgeConfig:
        with job_errors_are_value_errors():
            compile_template(self.template)
        try:
            groups = re.compile(self.pattern).groups
        except re.error as error:
            raise ValueError(f"the pattern {self.pattern!r} is not a regular expression: {error}") from error
        if groups != 1:
            raise ValueError(f"the pattern {self.pattern!r} must have one group, it has {groups}")
        if self.lowest >= self.highest:
            raise ValueError(f"lowest must be below highest, got {self.lowest:g} and {self.highest:g}")
        return self


class ModelConfig(RewardFields):
    """The logit that a Hugging Face sequence classifier gives a prompt and its answer."""

    type: Literal["model"]
    model: str = Field(min_length=1, description="A local folder, a Hugging Face hub id or an s3:// folder.")
    label: int | str | None = Field(
        default=None, description="Which logit, by number or name. Needed when the classifier has several."
    )
    probability: bool = Field(
        default=False, description="Take the sigmoid of a single logit, or the softmax over several, not the logit."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto", description="Number format of the weights; auto is bfloat16 on a GPU and float32 on a CPU."
    )
    device: str = Field(
        default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="Where it runs; auto is a GPU if there is one."
    )
    max_tokens: int | None = Field(
        default=None, ge=2, description="Longest conversation in tokens; unset leaves the classifier's own limit."
    )
    too_long: Literal["fail", "truncate"] = Field(
        default="fail",
        description="What becomes of a longer one: it fails by name, or loses tokens after its beginning, which are "
        "counted in the part tokens_cut.",
    )
    tokens_per_batch: int = Field(
        default=16384, ge=1, description="Most tokens, with padding, that go through the classifier at once."
    )
    answers_per_call: int = Field(default=256, ge=1, description="Most answers handed over at once; groups stay whole.")
    seconds_per_call: float = Field(
        default=600.0, gt=0, le=86400, description="Longest time one such call may take; its process is then ended."
    )
