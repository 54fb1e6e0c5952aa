"""A wrong rewards section is refused with the place and the reason."""

from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from rollmill.tasks.rewards.config import RewardConfigs

REWARDS = TypeAdapter(RewardConfigs)


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        ([{"type": "last_numbr"}], "'last_number', 'exact_match', 'contains', 'regex', 'length', 'math'"),
        ([{}], "discriminator 'type'"),
        ([], "at least 1 item"),
        ([{"type": "contains", "colour": 1}], "contains.colour"),
        ([{"type": "contains", "weight": float("nan")}], "finite"),
        ([{"type": "contains", "weight": "inf"}], "finite"),
        ([{"type": "contains", "name": "a/b"}], "pattern"),
        ([{"type": "contains"}, {"type": "contains"}], "two rewards are named 'contains'"),
        ([{"type": "contains", "name": "math"}, {"type": "math"}], "two rewards are named 'math'"),
        ([{"type": "regex", "pattern": "("}], "not a regular expression"),
        ([{"type": "regex", "pattern": "a", "group": 2}], "no group 2"),
        ([{"type": "length"}], "target or max"),
        ([{"type": "length", "target": 0}], "greater than or equal to 1"),
        ([{"type": "length", "max": 1, "unit": "bytes"}], "'tokens', 'characters' or 'words'"),
        ([{"type": "last_number", "tolerance": -1}], "greater than or equal to 0"),
        ([{"type": "function", "path": "a b"}], "pattern"),
        ([{"type": "format", "tags": ["a", "a"]}], "distinct"),
        ([{"type": "length_penalty", "max": 3, "buffer": 4}], "buffer must be at most max (3), got 4"),
        ([{"type": "min", "rewards": []}], "at least 1 item"),
        ([{"type": "sum", "rewards": [{"type": "math"}, {"type": "math"}]}], "two rewards are named 'math'"),
        (
            [{"type": "gate", "condition": {"type": "math"}, "rewards": [{"type": "math"}]}],
            "two rewards are named 'math'",
        ),
        ([{"type": "gate", "condition": {"type": "math", "weight": 2}, "rewards": [{"type": "format"}]}], "no weight"),
        ([{"type": "gate", "condition": {"type": "nope"}, "rewards": [{"type": "format"}]}], "gate.condition"),
    ],
)
def test_a_wrong_section_is_refused(rewards: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        REWARDS.validate_python(rewards)
    assert message in str(caught.value)


def test_every_field_says_what_it_changes() -> None:
    definitions = REWARDS.json_schema()["$defs"]
    undescribed = [
        f"{kind}.{name}"
        for kind, schema in definitions.items()
        for name, field in schema["properties"].items()
        if name != "type" and "description" not in field
    ]
    assert undescribed == []
    assert all("description" in schema for schema in definitions.values())


def test_a_section_survives_json() -> None:
    class Job(BaseModel):
        rewards: RewardConfigs

    job = Job.model_validate(
        {"rewards": [{"type": "regex", "pattern": "(a)", "group": 1}, {"type": "math", "weight": -0.5}]}
    )
    assert Job.model_validate_json(job.model_dump_json()) == job
