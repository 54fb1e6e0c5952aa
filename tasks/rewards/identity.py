"""What makes rewards the same rewards as before: what is said of them, and the code and weights that they name."""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rollmill.tasks.generation.policies import policy_fingerprint
from rollmill.tasks.rewards.allowed import plain_configs
from rollmill.tasks.rewards.classifier import find_classifier
from rollmill.tasks.rewards.config import PlainConfig, RewardConfig
from rollmill.tasks.rewards.config_rules import FunctionConfig
from rollmill.tasks.rewards.config_services import ModelConfig
from rollmill.tasks.rewards.entry import load_object, module_of
from rollmill.tasks.rewards.stored import rewards_to_text


def rewards_fingerprint(configs: Sequence[RewardConfig]) -> str:
    """Return 12 hexadecimal digits that other rewards, an edited function or another reward model would not have.

    Of a function counts the file that it is in, not what that imports; of a reward model, the configuration and
    weights in its local folder. A hub id, an s3:// folder and a service stand for themselves. Raises JobError for code
    or a reward model that cannot be found.
    """
    text = rewards_to_text(configs)
    contents = {place: found for place, config in plain_configs(configs) if (found := sorted(_contents(config)))}
    return digest(f"{text}\n{json.dumps(contents)}" if contents else text)


def digest(text: str) -> str:
    """Return 12 hexadecimal digits of a sha256."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _contents(config: PlainConfig) -> Iterator[str]:
    if isinstance(config, FunctionConfig):
        for path in _source_files(config.path):
            yield hashlib.sha256(path.read_bytes()).hexdigest()
    elif isinstance(config, ModelConfig) and Path(config.model).is_dir():
        find_classifier(config.model)
        yield policy_fingerprint(config.model)


def _source_files(path: str) -> set[Path]:
    """Return the file that a function is named by, and the one that it is defined in."""
    found = load_object(path)
    names = {module_of(path), getattr(inspect.unwrap(found) if callable(found) else type(found), "__module__", None)}
    modules = [sys.modules[name] for name in names if name in sys.modules]
    files = [inspect.getsourcefile(module) for module in modules if getattr(module, "__file__", None)]
    return {Path(file) for file in files if file is not None}
