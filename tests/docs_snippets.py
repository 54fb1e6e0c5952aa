"""The snippets of README and docs, and the commands in them."""

from __future__ import annotations

import re
import shlex
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

_GENERATED = re.compile(r"<!-- generated: make docs -->.*?<!-- end -->", re.DOTALL)
_BLOCK = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<code>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """One fenced block."""

    page: str
    language: str
    code: str

    @property
    def first_line(self) -> str:
        return self.code.partition("\n")[0].strip()

    def __str__(self) -> str:
        return f"{self.page}: {self.first_line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command of a shell snippet."""

    page: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {' '.join(self.words)}"


def snippets(*languages: str) -> list[Snippet]:
    """Return the blocks of all pages that were written by hand, or those of some languages."""
    found = [
        Snippet(page=page.name, language=block["language"], code=textwrap.dedent(block["code"]))
        for page in PAGES
        for block in _BLOCK.finditer(_GENERATED.sub("", page.read_text()))
    ]
    return [snippet for snippet in found if not languages or snippet.language in languages]


def commands() -> list[Command]:
    """Return every command of every shell snippet, each once a page, without comments and what sets variables."""
    found = []
    for snippet in snippets("bash"):
        for line in snippet.code.replace("\\\n", " ").splitlines():
            for words in _split(shlex.split(line, comments=True)):
                found.append(Command(page=snippet.page, words=words))
    return list(dict.fromkeys(found))


def mentions() -> list[Command]:
    """Return every command of rollmill's that the running text shows, as in `rollmill verify --logprobs`."""
    found = []
    for page in PAGES:
        text = _BLOCK.sub("", page.read_text())
        for shown in re.findall(r"`(rollmill [^`]+)`", text):
            found.append(Command(page=page.name, words=tuple(shown.split())))
    return list(dict.fromkeys(found))


def _split(words: list[str]) -> list[tuple[str, ...]]:
    """Return the commands of a line, parted at && and |."""
    parts: list[list[str]] = [[]]
    for word in words:
        if word in ("&&", "|", "&"):
            parts.append([])
        elif parts[-1] or not re.match(r"\w+=", word):
            parts[-1].append(word)
    return [tuple(part) for part in parts if part]
