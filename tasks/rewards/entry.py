"""Finding a user's reward by its path `package.module:name`, or by the name of an installed entry point."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import pkgutil
import sys
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from rollmill.errors import JobError
from rollmill.tasks.rewards.item import describe

ENTRY_POINT_GROUP = "rollmill.rewards"


def load_object(path: str) -> object:
    """Return what `package.module:name` names; a path without a colon is an entry point of group `rollmill.rewards`.

    A module that is not installed is looked for in the current folder, which then joins the end of `sys.path`. Raises
    JobError with what exists when there is no such module or name, and when the module cannot be imported.
    """
    module_name, colon, attribute = path.partition(":")
    if not colon:
        return load_object(_entry_point(path))
    value: object = _import(module_name, path)
    for part in attribute.split("."):
        if not hasattr(value, part):
            names = _public_names(value)
            raise JobError(f"reward function {path!r}: {module_name} has no {attribute!r}; it has {_listed(names)}")
        value = getattr(value, part)
    return value


def module_of(path: str) -> str:
    """Return the name of the module that `load_object` imports. Raises JobError when there is no such entry point."""
    name, colon, _ = path.partition(":")
    return name if colon else module_of(_entry_point(path))


def _entry_point(name: str) -> str:
    known = {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in known:
        raise JobError(
            f"reward function {name!r} is neither a path package.module:name nor an entry point of the group "
            f"{ENTRY_POINT_GROUP}; installed entry points: {_listed(known)}"
        )
    return known[name]


def _import(name: str, path: str) -> ModuleType:
    _look_in_current_folder(name.partition(".")[0])
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise JobError(f"reward function {path!r}: importing {name} failed: {describe(error)}") from error
        raise JobError(f"reward function {path!r}: there is no module {error.name}{_siblings(error.name)}") from error
    except (Exception, SystemExit) as error:
        raise JobError(f"reward function {path!r}: importing {name} failed: {describe(error)}") from error


def _look_in_current_folder(top: str) -> None:
    folder = Path.cwd()
    if top in sys.modules or str(folder) in sys.path or not top.isidentifier():
        return
    if importlib.util.find_spec(top) is None and ((folder / f"{top}.py").is_file() or (folder / top).is_dir()):
        sys.path.append(str(folder))
        importlib.invalidate_caches()


def _siblings(missing: str) -> str:
    parent = missing.rpartition(".")[0]
    module = sys.modules.get(parent)
    if module is None or not hasattr(module, "__path__"):
        return f" (looked in sys.path and in {os.getcwd()})"
    return f"; {parent} has {_listed(found.name for found in pkgutil.iter_modules(module.__path__))}"


def _public_names(value: object) -> list[str]:
    members = vars(value) if hasattr(value, "__dict__") else {}
    own = [name for name, member in members.items() if callable(member) and not name.startswith("_")]
    defined = [name for name in own if inspect.getmodule(members[name]) is value]
    return defined or own


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)[:20]) or "none"
