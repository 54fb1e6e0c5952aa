"""The job sections that say which policy answers, how it samples, and on what it runs."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rollmill.tasks.generation.types import SamplingParams


class PolicyConfig(BaseModel):
    """Which model answers."""

    model_config = ConfigDict(extra="forbid", title="Policy")

    model: str = Field(
        min_length=1,
        description="The policy: a bundled name (smollm2-135m), a Hugging Face hub id, a local folder or an s3:// "
        "folder. Another model is another run.",
    )
    version: int = Field(
        default=0,
        ge=0,
        description="The trainer's number for these weights. It is stored with every row, and a reader's staleness is "
        "the trainer's version minus this.",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto",
        description="Number format of the weights and activations. float32 answers do not depend on the batch; "
        "bfloat16 is faster. auto takes the checkpoint's own on a GPU and float32 on a CPU.",
    )


class SamplingConfig(BaseModel):
    """How answers are drawn. Any change is another run."""

    model_config = ConfigDict(extra="forbid", title="Sampling")

    group_size: int = Field(default=8, ge=1, le=4096, description="Answers drawn for each prompt (G).")
    max_tokens: int = Field(default=1024, ge=1, description="Most new tokens an answer may have; longer ones are cut.")
    temperature: float = Field(default=1.0, ge=0, le=100, description="Divides the logits; 0 is greedy decoding.")
    top_p: float = Field(default=1.0, gt=0, le=1, description="Keep the likeliest tokens up to this probability.")
    top_k: int = Field(default=0, ge=0, description="Keep this many of the likeliest tokens; 0 keeps all.")
    frequency_penalty: float = Field(
        default=0.0, ge=-10, le=10, description="Subtracted from a token's logit for each time it is in the window."
    )
    rep_window: int = Field(
        default=64, ge=0, description="How many of an answer's last tokens the frequency penalty looks at."
    )
    kept_token_ids: bool = Field(
        default=False,
        description="Also store, for each token, the ids that top_k and top_p left to draw from, so that a trainer can "
        "renormalise over the same set. Needs top_p below 1 or top_k above 0.",
    )
    full_logprobs: bool = Field(
        default=False,
        description="Also store each token's log-probability over the whole vocabulary at temperature 1.",
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="Seed of the job: the same seed gives the same answers.")

    def params(self) -> SamplingParams:
        """Return what the scheduler needs to know of this section."""
        return SamplingParams(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            frequency_penalty=self.frequency_penalty,
            rep_window=self.rep_window,
            kept_token_ids=self.kept_token_ids,
            full_logprobs=self.full_logprobs,
        )

    @model_validator(mode="after")
    def _something_is_left_out(self) -> SamplingConfig:
        if self.kept_token_ids and self.top_k == 0 and self.top_p == 1:
            raise ValueError("kept_token_ids needs top_p below 1 or top_k above 0: else every token is kept")
        return self


class EngineConfig(BaseModel):
    """What the policy runs on. But for `backend`, none of these fields changes an answer."""

    model_config = ConfigDict(extra="forbid", title="Engine")

    backend: Literal["torch", "vllm"] = Field(
        default="torch",
        description="What runs the model: torch is rollmill's own scheduler; vllm has to be installed beside rollmill. "
        "Another backend draws other answers, so it is another run.",
    )
    max_batch_size: int = Field(default=64, ge=1, description="Most answers in progress at once on a device.")
    max_seq_len: int | None = Field(
        default=None, ge=2, description="Most tokens of prompt and answer together; the model's own limit when unset."
    )
    devices: str = Field(
        default="auto",
        pattern=r"^(auto|cpu(:\d+)?|cuda(:\d+(,\d+)*)?)$",
        description="auto takes every GPU there is, else the CPU; cpu; cpu:2 for two engine processes; cuda:0,1.",
    )
    memory_share: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="vllm only: the share of each device's memory that an engine may take, for weights and keys and "
        "values. Unset: 0.9 of a GPU, 0.25 of the machine's on a CPU.",
    )
    concurrency_limit: str | None = Field(
        default=None,
        min_length=1,
        description="A global concurrency limit of the Prefect server, such as rollmill-gpus, which the runs "
        "of all machines share: each engine takes a slot of it, and a run waits until there are enough.",
    )
    seconds_per_shard: float = Field(
        default=3600.0, gt=0, description="An engine that has not answered for a shard by then is killed and retried."
    )
    price_per_device_hour: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="What an hour of a device costs, in any currency: of a GPU, or of one engine on CPUs. The report "
        "then says what the run's answers cost.",
    )

    @model_validator(mode="after")
    def _every_field_is_read(self) -> EngineConfig:
        if self.memory_share is not None and self.backend != "vllm":
            raise ValueError("memory_share is for backend vllm; torch takes what max_batch_size needs")
        return self
