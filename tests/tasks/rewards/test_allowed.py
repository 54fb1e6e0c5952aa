"""A job that comes over an API runs only the code, and reads only the keys, that its worker allows."""

from typing import Any

import pytest
from pydantic import TypeAdapter

from rollmill.errors import JobError
from rollmill.tasks.rewards.allowed import check_allowed
from rollmill.tasks.rewards.config import RewardConfig, RewardConfigs


def configs_of(*rewards: dict[str, Any]) -> list[RewardConfig]:
    return TypeAdapter(RewardConfigs).validate_python(list(rewards))


FUNCTION = {"type": "function", "path": "ours.rewards:score"}


@pytest.mark.parametrize(
    ("reward", "place"),
    [
        (FUNCTION, r"rewards\[0\]\.path"),
        ({"type": "min", "rewards": [{"type": "format"}, FUNCTION]}, r"rewards\[0\]\.rewards\[1\]\.path"),
        ({"type": "sum", "rewards": [FUNCTION]}, r"rewards\[0\]\.rewards\[0\]\.path"),
        ({"type": "gate", "condition": FUNCTION, "rewards": [{"type": "format"}]}, r"rewards\[0\]\.condition\.path"),
        ({"type": "gate", "condition": {"type": "format"}, "rewards": [FUNCTION]}, r"rewards\[0\]\.rewards\[0\]\.path"),
    ],
)
def test_a_function_runs_only_when_its_package_is_allowed_wherever_it_stands(
    reward: dict[str, Any], place: str
) -> None:
    configs = configs_of(reward)
    for packages in (["ours"], ["ours.rewards", "os"]):
        check_allowed(configs, packages=packages)
    for packages in ([], ["our"], ["ours.rewards.deeper"], ["ours.reward"]):
        with pytest.raises(JobError, match=rf"^{place}: ours\.rewards:score may not be run.*allows the packages "):
            check_allowed(configs, packages=packages)


def test_entry_points_and_built_in_kinds_need_no_permission() -> None:
    check_allowed(configs_of({"type": "function", "path": "installed"}, {"type": "math"}), packages=[])


def test_a_key_is_read_only_from_a_variable_that_is_allowed() -> None:
    service = {"type": "http", "url": "http://localhost/", "api_key_env": "AWS_SECRET_ACCESS_KEY"}
    check_allowed(configs_of(service), packages=[], variables=["AWS_SECRET_ACCESS_KEY"])
    with pytest.raises(
        JobError, match=r"rewards\[0\]\.api_key_env: AWS_SECRET_ACCESS_KEY may not be used .* allows JUDGE_KEY"
    ):
        check_allowed(configs_of(service), packages=[], variables=["JUDGE_KEY"])
