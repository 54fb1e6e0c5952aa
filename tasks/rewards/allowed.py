"""Which code and which secrets a job may name when it does not come from the machine's own user."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from rollmill.errors import JobError
from rollmill.tasks.rewards.config import GateConfig, MinConfig, PlainConfig, RewardConfig, SumConfig
from rollmill.tasks.rewards.config_rules import FunctionConfig
from rollmill.tasks.rewards.config_services import HttpConfig, JudgeConfig


def check_allowed(
    configs: Sequence[RewardConfig], *, packages: Collection[str], variables: Collection[str] = ()
) -> None:
    """Raise JobError when a job runs code, or reads an environment variable, that is not on the lists.

    For jobs that come over an API: whoever may start a run could else run any importable code here, or have a key of
    this machine posted to an address of their own. `packages` are names of packages whose functions may be named by
    path, with those below them (`ours` allows `ours.rewards:score`); entry points were installed on purpose and need
    no entry. `variables` are environment variables that may be named as `api_key_env`.
    """
    for place, config in plain_configs(configs):
        if isinstance(config, FunctionConfig) and ":" in config.path:
            _check_path(place, config.path, packages)
        named = config.api_key_env if isinstance(config, (HttpConfig, JudgeConfig)) else None
        if named is not None and named not in variables:
            raise JobError(
                f"{place}.api_key_env: {named} may not be used by jobs that come over the API; "
                f"this worker allows {_listed(variables)}"
            )


def plain_configs(configs: Sequence[RewardConfig], place: str = "rewards") -> Iterator[tuple[str, PlainConfig]]:
    """Yield every reward that is not made of others, also within compositions, with its place in the job."""
    for index, config in enumerate(configs):
        here = f"{place}[{index}]"
        match config:
            case SumConfig() | MinConfig():
                yield from plain_configs(config.rewards, f"{here}.rewards")
            case GateConfig():
                yield f"{here}.condition", config.condition
                yield from plain_configs(config.rewards, f"{here}.rewards")
            case _:
                yield here, config


def _check_path(place: str, path: str, packages: Collection[str]) -> None:
    module = path.partition(":")[0]
    if not any(module == package or module.startswith(f"{package}.") for package in packages):
        raise JobError(
            f"{place}.path: {path} may not be run by jobs that come over the API; "
            f"this worker allows the packages {_listed(packages)}"
        )


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names)) or "none"
