"""The examples in the docstrings are run as they stand."""

import doctest
import importlib
import pkgutil

import pytest

import rollmill.tasks.rewards

MODULES = [found.name for found in pkgutil.iter_modules(rollmill.tasks.rewards.__path__)]
WITH_EXAMPLES = {
    "base", "boxed", "contains", "exact_match", "last_number", "length", "math", "reasoning_gym", "regex",
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_every_example_gives_what_it_shows(name: str) -> None:
    module = importlib.import_module(f"rollmill.tasks.rewards.{name}")
    result = doctest.testmod(module)
    assert result.failed == 0
    assert result.attempted > 0 or name not in WITH_EXAMPLES
