"""What mkdocs needs to know of this repository: links that lead out of docs/ lead to copies within the site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
OUTSIDE = re.compile(r"\]\(\.\./(?P<path>[^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add every file of the repository that a page links to, so that the link works in the site as in the folder."""
    pages = [file.content_string for file in files.documentation_pages()]
    for path in sorted({found["path"] for text in pages for found in OUTSIDE.finditer(text)}):
        if (ROOT / path).is_file():
            files.append(File.generated(config, f"repository/{path}", abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, files: Files, **_: Any) -> str:
    """Let links that lead out of docs/ lead to those copies. A link to a file that is not there stays, and is told."""

    def copy(link: re.Match[str]) -> str:
        is_there = files.get_file_from_path(f"repository/{link['path']}") is not None
        return f"](repository/{link['path']}" if is_there else link[0]

    return OUTSIDE.sub(copy, markdown)
