"""Every reward shows an example in its docstring, and the examples are run as they stand."""

import doctest
import importlib
import inspect
import pkgutil

import pytest

import rollmill.tasks.rewards
from rollmill.tasks.rewards.base import BaseRewardModel

MODULES = [found.name for found in pkgutil.iter_modules(rollmill.tasks.rewards.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_every_example_gives_what_it_shows(name: str) -> None:
    module = importlib.import_module(f"rollmill.tasks.rewards.{name}")
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_every_reward_shows_an_example(name: str) -> None:
    module = importlib.import_module(f"rollmill.tasks.rewards.{name}")
    for kind in vars(module).values():
        is_reward = inspect.isclass(kind) and issubclass(kind, BaseRewardModel) and kind.__module__ == module.__name__
        if is_reward and not inspect.isabstract(kind):
            assert ">>>" in (kind.__doc__ or ""), kind
