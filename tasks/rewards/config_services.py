"""The job sections of the rewards that run programs, call services or load models."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rollmill.tasks.rewards.fields import RewardFields


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
