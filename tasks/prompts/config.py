"""The job section that says what is asked."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rollmill.tasks.storage_options import StorageOptions


class PromptsConfig(BaseModel):
    """Where the prompts come from and how they are put to the policy. Any change is another run."""

    model_config = ConfigDict(extra="forbid", title="Prompts")

    source: str = Field(
        min_length=1,
        description="The prompt dataset: a .jsonl, .parquet or .csv file (a local path or s3://…), hf:<dataset> (a hub "
        "id or a local folder, read with the datasets package), or reasoning_gym:<task>.",
    )
    limit: int | None = Field(
        default=None,
        ge=1,
        description="Only the first so many rows are used; unset uses all. For reasoning_gym it is how many are made.",
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="Options of the source itself: split, name, revision, data_dir or data_files of an hf: dataset; "
        "seed and the task's own settings for reasoning_gym. Files take none.",
    )
    storage_options: StorageOptions = Field(
        default_factory=dict,
        description="Passed to fsspec when the source is a URL, such as endpoint_url or profile for s3://. Credentials "
        "are refused here: they come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and so on).",
    )
    prompt_column: str | None = Field(
        default=None,
        min_length=1,
        description="The column that holds the prompt. Unset takes the first of prompt, messages and input_ids that a "
        "row has.",
    )
    system_prompt: str | None = Field(
        default=None,
        min_length=1,
        description="A system message put before every conversation that has none of its own.",
    )
    template: Literal["auto", "raw"] = Field(
        default="auto",
        description="auto puts text and chat messages through the tokenizer's chat template when it has one; raw gives "
        "text to the policy as it is, and chat messages become error rows.",
    )
    max_prompt_tokens: int | None = Field(
        default=None,
        ge=1,
        description="A prompt with more tokens becomes an error row and the others go on. Unset leaves only the "
        "policy's own limit.",
    )

    @model_validator(mode="after")
    def _a_system_prompt_needs_a_template(self) -> PromptsConfig:
        if self.template == "raw" and self.system_prompt is not None:
            raise ValueError(
                "system_prompt needs the chat template: set template to auto, or write it into the prompts"
            )
        return self
