"""How the rewards of a job are written into the files that they scored, and read back."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pydantic import TypeAdapter, ValidationError

from rollmill.errors import JobError
from rollmill.tasks.rewards.config import RewardConfig, RewardConfigs


def rewards_to_text(configs: Sequence[RewardConfig]) -> str:
    """Return rewards as JSON, without what is left at its default. They hold names of API keys, and never the keys."""
    values = [config.model_dump(mode="json", exclude_defaults=True) for config in configs]
    return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)


def rewards_from_text(text: str, where: str) -> list[RewardConfig]:
    """Return the rewards that `rewards_to_text` wrote. Raises JobError, naming `where`, when this version of rollmill
    does not know them."""
    try:
        return TypeAdapter(RewardConfigs).validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise JobError(
            f"{where} was scored by rewards that cannot be built here: {first['msg']}; name others"
        ) from error
