"""Reading a job from YAML with changes from the command line, and saying what is wrong with it in one line."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rollmill.errors import JobError
from rollmill.flows.job import RolloutJob
from rollmill.flows.rejection_sampling_job import RejectionSamplingJob

Model = TypeVar("Model", bound=BaseModel)


def load_job(path: str | Path, overrides: Sequence[str] = (), store: str | None = None) -> RolloutJob:
    """Read the job at `path`, change it by each `a.b=c` of `overrides`, and check it.

    The value of an override is read as YAML; a number in its path is a place in a list. Raises JobError with one line
    that names every wrong key by its dotted path and says what would be right. A job with a section `export` is a
    RejectionSamplingJob.
    """
    values = _read_mapping(Path(path))
    for override in overrides:
        _apply(values, override)
    if store is not None:
        values["store"] = store
    return check_job(values, str(path))


def check_job(values: dict[str, Any], where: str) -> RolloutJob:
    """Build a job from plain values; raises JobError as `load_job` does, with `where` in front."""
    return check_values(job_model(values), values, where)


def job_model(values: dict[str, Any]) -> type[RolloutJob]:
    """Return which kind of job plain values are meant as; a misspelt `export` counts, so that it is told as one."""
    names = [str(name) for name in values]
    known = [*RolloutJob.model_fields, "export"]
    meant = "vary_seed" in names or any(
        difflib.get_close_matches(name, known, n=1, cutoff=0.7) == ["export"] for name in names
    )
    return RejectionSamplingJob if meant else RolloutJob


def check_values(model: type[Model], values: dict[str, Any], where: str) -> Model:
    """Build any of the flows' parameters from plain values; raises JobError as `load_job` does."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        faults = [_describe(fault, values, model) for fault in error.errors(include_url=False)]
        raise JobError(f"{where}: {'; '.join(faults)}") from error


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML in which a key that occurs twice is an error, for one of the two would be lost."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {key} occurs twice", problem_mark=key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def _read_mapping(path: Path) -> dict[str, Any]:
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise JobError(f"{path}: must hold a mapping of job fields such as name, store and policy")
    return values


def read_yaml(path: Path, what: str = "job file") -> Any:
    """Return what a YAML or JSON file holds. Raises JobError that names the file, and the line where there is one."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise JobError(f"{path}: there is no such {what}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"{path}: cannot be read as a {what}: {error}") from error
    try:
        return yaml.load(text, _UniqueKeyLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" line {mark.line + 1}" if mark else ""
        raise JobError(f"{path}{line}: not valid YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise JobError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error


def _apply(values: dict[str, Any], override: str) -> None:
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise JobError(f"--set {override}: must look like sampling.group_size=4")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise JobError(f"--set {override}: the value is not valid YAML: {' '.join(str(error).split())}") from error
    place: Any = values
    for depth, key in enumerate(keys[:-1]):
        place = _enter(place, key, override, ".".join(keys[: depth + 1]))
    if isinstance(place, list):
        place[_index(place, keys[-1], override)] = value
    else:
        place[keys[-1]] = value


def _enter(place: Any, key: str, override: str, path: str) -> Any:
    if isinstance(place, list):
        return place[_index(place, key, override)]
    if place.get(key) is None:
        place[key] = {}
    if not isinstance(place[key], dict | list):
        raise JobError(f"--set {override}: {path} is {place[key]!r}, which holds no fields")
    return place[key]


def _index(place: list[Any], key: str, override: str) -> int:
    if not key.isdecimal() or int(key) >= len(place):
        raise JobError(f"--set {override}: {key} is no place in a list of {len(place)}; places count from 0")
    return int(key)


def _describe(fault: ErrorDetails, values: dict[str, Any], model: type[BaseModel]) -> str:
    location = _without_tags(fault["loc"], values)
    path = ".".join(str(key) for key in location) or "the job"
    kind, context, given = fault["type"], fault.get("ctx", {}), _shortened(fault["input"])
    if kind == "extra_forbidden":
        return f"{path} is an unknown key{_suggestion(location, values, model)}"
    if kind == "missing":
        return f"{path} is missing"
    if kind == "value_error":
        return f"{path}: {context['error']}" if location else str(context["error"])
    if kind in _BOUNDS:
        return f"{path} must be {_BOUNDS[kind].format(**context)}, got {given}"
    return f"{path}: {_lower_first(fault['msg'])}, got {given}"


_WHOLE, _NUMBER, _TEXT, _FLAG = "a whole number", "a number", "text", "true or false"
_BOUNDS = {
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
    "literal_error": "{expected}",
    "union_tag_invalid": "of a type among {expected_tags}",
    "union_tag_not_found": "a mapping with a {discriminator}",
    "string_pattern_mismatch": "text that matches {pattern}",
    "string_too_short": "text of at least {min_length} characters",
    "string_too_long": "text of at most {max_length} characters",
    "too_short": "a list of at least {min_length}",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "string_type": _TEXT,
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_from_float": _WHOLE,
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "finite_number": "a finite number",
    "bool_type": _FLAG,
    "bool_parsing": _FLAG,
}
"""What would be right, by pydantic's name of the fault; braces are filled from the fault's own context."""


def _without_tags(location: tuple[str | int, ...], values: Any) -> list[str | int]:
    """Drop what pydantic adds to a location when it chose among several models by their `type`."""
    kept: list[str | int] = []
    place = values
    for key in location:
        if isinstance(place, dict) and place.get("type") == key and key not in place:
            continue
        kept.append(key)
        inside = (isinstance(place, dict) and key in place) or (isinstance(place, list) and isinstance(key, int))
        place = place[key] if inside else None
    return kept


def _suggestion(location: list[str | int], values: dict[str, Any], model: type[BaseModel]) -> str:
    known = _fields_at(location[:-1], values, model)
    near = difflib.get_close_matches(str(location[-1]), known, n=1)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; the keys there are {', '.join(known)}" if known else ""


def _fields_at(location: list[str | int], values: Any, model: type[BaseModel]) -> list[str]:
    """Return the names of the fields that the model's JSON schema allows at a location."""
    schema = model.model_json_schema()
    node: dict[str, Any] = schema
    for key in location:
        values = values[key]
        node = node["items"] if isinstance(key, int) else node["properties"][key]
        node = _resolve(next(filter(_has_parts, node.get("anyOf", ())), node), schema, values)
    return list(node.get("properties", {}))


def _has_parts(node: dict[str, Any]) -> bool:
    """Whether this alternative of a field that may be unset is the one with fields or places in it."""
    return bool({"items", "properties", "$ref"} & node.keys())


def _resolve(node: dict[str, Any], schema: dict[str, Any], values: Any) -> dict[str, Any]:
    if "discriminator" in node:
        node = {"$ref": node["discriminator"]["mapping"][values["type"]]}
    if "$ref" in node:
        node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    return node


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
