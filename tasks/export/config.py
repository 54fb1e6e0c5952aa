"""What an export is told."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rollmill.tasks.rewards.fields import job_errors_are_value_errors
from rollmill.tasks.selection.config import SelectionConfig, TrainingFormat
from rollmill.tasks.selection.pipeline import Selection


class ExportConfig(BaseModel):
    """What a training set is made of."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: TrainingFormat = Field(
        description="sft: messages; dpo: prompt, chosen, rejected; kto: prompt, completion, label; table: the chosen "
        "rows with all of their columns."
    )
    selection: SelectionConfig = Field(
        default_factory=SelectionConfig, description="Which answers become training data."
    )
    test_fraction: float = Field(
        default=0.05,
        ge=0,
        lt=1,
        description="About this share of the prompts goes to the test split, by a hash of prompt_id; 0 makes none.",
    )
    split_seed: int = Field(
        default=0, ge=0, lt=2**63, description="Another seed sends other prompts to the test split."
    )
    min_records: int = Field(default=1, ge=1, description="With fewer records nothing is written.")

    @model_validator(mode="after")
    def _selection_suits_the_format(self) -> ExportConfig:
        with job_errors_are_value_errors():
            Selection(self.selection, self.format)
        return self
