"""Writes the generated parts of jobs.md, rewards.md, cli.md, python.md and deployments.md: `make docs`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from pydoc import locate
from typing import Any

import typer
from typer.core import TyperOption

import rollmill
from rollmill import errors
from rollmill.cli.main import app
from rollmill.flows.deploy_settings import TeamSettings
from rollmill.flows.job import RolloutJob
from rollmill.flows.rejection_sampling_job import RejectionSamplingJob
from rollmill.tasks.rewards.fields import RewardFields

BEGIN, END = "<!-- generated: make docs -->", "<!-- end -->"
FOLDER = Path(__file__).parent

FURTHER = [
    "rollmill.storage.version.DatasetVersion",
    "rollmill.storage.kept.KeptTokens",
    "rollmill.tasks.generation.load_policy",
    "rollmill.flows.command.run_job",
    "rollmill.storage.objects.open_objects",
    "rollmill.tasks.export.exporting.export_training_set",
]
"""What the pages use besides the public names."""

_BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
}


def with_generated_part(text: str, generated: str) -> str:
    """Return a page with what stands between its two marks replaced."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{generated.strip()}\n\n{END}{rest.partition(END)[2]}"


def job_reference() -> str:
    """Return a table of fields for the job, with everything that a job may have, and for each of its sections."""
    schema = RejectionSamplingJob.model_json_schema()
    definitions = schema["$defs"]
    schema["required"].remove("export")
    return "\n\n".join(["### The job", _table(schema, definitions), *_sections(schema, definitions, "")])


def _sections(schema: dict[str, Any], definitions: dict[str, Any], prefix: str) -> Iterator[str]:
    """Yield the title, description and table of each section, and then those of the sections within it."""
    for name, field in schema["properties"].items():
        for kind in (field, *field.get("oneOf", ())):
            if "$ref" in kind:
                section = definitions[kind["$ref"].rpartition("/")[2]]
                of_type = "" if kind is field else f" of type `{section['properties']['type']['const']}`"
                yield from (f"### `{prefix}{name}`{of_type}", section["description"], _table(section, definitions))
                yield from _sections(section, definitions, f"{prefix}{name}.")


def reward_reference() -> str:
    """Return a table of the fields that every reward has, and one for each kind of the fields of its own."""
    definitions = RolloutJob.model_json_schema()["$defs"]
    shared = RewardFields.model_json_schema()
    parts = ["### Every kind", "These fields and `type`, which names the kind.", _table(shared, definitions)]
    for reward in definitions.values():
        fields = reward.get("properties", {})
        if "const" in fields.get("type", {}) and "weight" in fields:
            own = {name: field for name, field in fields.items() if name not in {*shared["properties"], "type"}}
            parts += [f"### `{fields['type']['const']}`", reward["description"]]
            parts += [_table({**reward, "properties": own}, definitions)] if own else []
    return "\n\n".join(parts)


def settings_reference() -> str:
    """Return a table of fields for the settings that `rollmill deploy` reads, and for each of their sections."""
    schema = TeamSettings.model_json_schema()
    definitions = schema["$defs"]
    return "\n\n".join(["### The file", _table(schema, definitions), *_parts(schema, definitions, "")])


def _parts(schema: dict[str, Any], definitions: dict[str, Any], prefix: str) -> Iterator[str]:
    """Yield the title, description and table of each section, in lists and optional ones too, and of those within."""
    for name, field in schema["properties"].items():
        for option in (field, field.get("items", {}), *field.get("anyOf", ())):
            if "$ref" in option:
                section = definitions[option["$ref"].rpartition("/")[2]]
                path = f"{prefix}{name}{'[]' if 'items' in field else ''}"
                yield from (f"### `{path}`", section["description"], _table(section, definitions))
                yield from _parts(section, definitions, f"{path}.")


def command_reference() -> str:
    """Return a section for each command: what it does, its example, arguments and options."""
    group = typer.main.get_command(app)
    commands: dict[str, Any] = group.commands  # type: ignore[attr-defined]
    return "\n\n".join(_command(name, command) for name, command in sorted(commands.items()))


def python_reference() -> str:
    """Return a section for each public name, for what else the pages use, and the tree of errors."""
    public = [_named(f"rollmill.{name}", getattr(rollmill, name)) for name in rollmill.__all__]
    further = [_named(path, locate(path)) for path in FURTHER]
    tree = f"```text\n{inspect.cleandoc(errors.__doc__ or '')}\n```"
    return "\n\n".join(["## Public names", *public, "## Further names", *further, "## Errors", tree])


def pages() -> Iterator[tuple[Path, str]]:
    """Yield each page's path and what it should hold."""
    references = {
        "jobs.md": job_reference,
        "rewards.md": reward_reference,
        "cli.md": command_reference,
        "python.md": python_reference,
        "deployments.md": settings_reference,
    }
    for name, generated in references.items():
        path = FOLDER / name
        yield path, with_generated_part(path.read_text(), generated())


def _table(section: dict[str, Any], definitions: dict[str, Any]) -> str:
    required = set(section.get("required", ()))
    rows = [
        f"| `{name}` | {_type(field)} | {'required' if name in required else _default(field)} "
        f"| {_cell(_description(field, definitions))} |"
        for name, field in section["properties"].items()
    ]
    return "\n".join(["| field | type | default | what it does |", "|---|---|---|---|", *rows])


def _description(field: dict[str, Any], definitions: dict[str, Any]) -> str:
    named = definitions.get(field.get("$ref", "").rpartition("/")[2], {})
    return str(field.get("description") or named.get("description", ""))


def _type(field: dict[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(_type(option) for option in field["anyOf"] if option.get("type") != "null")
    if "enum" in field:
        return _cell(" or ".join(f"`{value}`" for value in field["enum"]))
    if "const" in field:
        return f"`{field['const']}`"
    bounds = [text.format(f"{field[key]:g}") for key, text in _BOUNDS.items() if abs(field.get(key, 2**60)) < 2**60]
    kind = field.get("type", "mapping")
    return ", ".join([{"object": "mapping", "array": "list"}.get(kind, kind), *bounds])


def _default(field: dict[str, Any]) -> str:
    value = field.get("default")
    if isinstance(value, dict):
        return f"`{{{', '.join(f'{key}: {item}' for key, item in value.items())}}}`"
    return "" if value in (None, "") else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _command(name: str, command: Any) -> str:
    text = "\n\n".join(" ".join(part.split()) for part in command.help.split("\n\n"))
    text = text.replace("Example: ", "Example: `") + "`"
    rows = [f"| `{_option(parameter)}` | {_cell(parameter.help or '')} |" for parameter in command.params]
    return "\n".join([f"### `rollmill {name}`", "", text, "", "| argument or option | meaning |", "|---|---|", *rows])


def _option(parameter: Any) -> str:
    metavar = parameter.metavar or parameter.name.upper()
    if not isinstance(parameter, TyperOption):
        return str(metavar)
    return parameter.opts[0] if parameter.is_flag else f"{parameter.opts[0]} {metavar}"


def _named(path: str, value: Any) -> str:
    """Return a section of one class or function: how it is called, its contract, and its members."""
    home, _, name = path.rpartition(".")
    parts = [f"### `{name}`", f"`from {home} import {name}`"]
    if value is RolloutJob:
        parts.append("[All fields of a job](jobs.md#all-fields) are its arguments.")
        call = f"{name}(**fields)"
    else:
        call = _call(name, value)
    parts.append(f"```text\n{call}\n\n{inspect.cleandoc(value.__doc__ or '')}\n```")
    rows = list(_members(value)) if inspect.isclass(value) and value is not RolloutJob else []
    if rows:
        parts.append("\n".join(["| member | what it does |", "|---|---|", *rows]))
    return "\n\n".join(parts)


def _members(value: type) -> Iterator[str]:
    for name, member in vars(value).items():
        function = member.fget if isinstance(member, property) else member
        if name.startswith("_") or not inspect.isfunction(function):
            continue
        summary = inspect.cleandoc(function.__doc__ or "").partition("\n\n")[0]
        call = _call(name, function, one_line=True)
        shown = call.replace("() ->", ":") if isinstance(member, property) else call
        yield f"| `{_cell(shown)}` | {_cell(summary)} |"


def _call(name: str, function: Callable[..., Any], one_line: bool = False) -> str:
    """Return how a function is called, with one argument a line where they are many."""
    signature = inspect.signature(function)
    arguments = []
    for argument in signature.parameters.values():
        if argument.kind is argument.KEYWORD_ONLY and "*" not in arguments:
            arguments.append("*")
        if argument.name != "self":
            arguments.append(_argument(argument))
    result = (
        "" if signature.return_annotation in (signature.empty, None, "None") else f" -> {signature.return_annotation}"
    )
    line = f"{name}({', '.join(arguments)}){result}"
    if one_line or len(line) <= 100:
        return line
    return f"{name}(\n" + "".join(f"    {argument},\n" for argument in arguments) + f"){result}"


def _argument(argument: inspect.Parameter) -> str:
    stars = {argument.VAR_POSITIONAL: "*", argument.VAR_KEYWORD: "**"}.get(argument.kind, "")
    annotation = "" if argument.annotation is argument.empty else f": {argument.annotation}"
    if argument.default is argument.empty:
        return f"{stars}{argument.name}{annotation}"
    default = "…" if "factory" in repr(argument.default) else repr(argument.default)
    return f"{argument.name}{annotation} = {default}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    for path, text in pages():
        path.write_text(text)
        sys.stdout.write(f"wrote {path.name}\n")
