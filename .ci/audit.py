"""Asks PyPI for known vulnerabilities of the releases in constraints.txt, which `make check` does.

    python .ci/audit.py [--index https://pypi.org/pypi] [--constraints constraints.txt] [--accepted .ci/accepted.toml]

Ends with 1 when a release has one that accepted.toml does not list by its id, with a reason. Where no answer is to be
had, offline or behind a mirror that has no such data, it says so in one line and ends with 0.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx

_ROOT = Path(__file__).parents[1]
_PIN = re.compile(r"([A-Za-z0-9._-]+)==([^\s;+]+)")
_REQUESTS_AT_ONCE = 16


class UnknownError(Exception):
    """The index does not tell the vulnerabilities of a release."""


@dataclass(frozen=True, slots=True)
class Vulnerability:
    """A known vulnerability of a release, under all its ids, and the releases that no longer have it."""

    release: str
    ids: tuple[str, ...]
    fixed_in: tuple[str, ...]
    summary: str

    def __str__(self) -> str:
        fixed = f"fixed in {', '.join(self.fixed_in)}" if self.fixed_in else "no release is without it"
        return f"{self.release}: {', '.join(self.ids)}; {fixed}; {self.summary}"


def main() -> int:
    options = _options()
    accepted = _accepted(options.accepted)
    pins = _PIN.findall("\n".join(_lines(options.constraints)))
    with httpx.Client(base_url=f"{options.index.rstrip('/')}/", timeout=20.0, follow_redirects=True) as index:
        try:
            vulnerabilities(index, *pins[0])  # whether it tells at all, before hundreds are asked for
        except UnknownError as error:
            _say(f"dependencies are not audited: {error}")
            return 0
        with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as threads:
            answers = list(threads.map(lambda pin: _answer(index, *pin), pins))
    found = [each for answer in answers if not isinstance(answer, UnknownError) for each in answer]
    unknown = [answer for answer in answers if isinstance(answer, UnknownError)]
    return _judge(found, unknown, accepted, len(pins))


def vulnerabilities(index: httpx.Client, name: str, version: str) -> list[Vulnerability]:
    """Return a release's known vulnerabilities. Raises UnknownError when the index does not tell."""
    try:
        answer = index.get(f"{name}/{version}/json")
        if answer.status_code != httpx.codes.OK:
            raise UnknownError(f"{answer.url} answers {answer.status_code}")
        known = answer.json()["vulnerabilities"]
        return [_vulnerability(f"{name} {version}", each) for each in known if not each.get("withdrawn")]
    except httpx.HTTPError as error:
        raise UnknownError(f"{index.base_url} gives no answer: {' '.join(str(error).split())}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UnknownError(f"{answer.url} does not tell vulnerabilities: {error!r}") from error


def _vulnerability(release: str, known: Mapping[str, object]) -> Vulnerability:
    aliases, fixed_in = known.get("aliases") or [], known.get("fixed_in") or []
    text = str(known.get("summary") or known.get("details") or "").strip()
    assert isinstance(aliases, list)
    assert isinstance(fixed_in, list)
    return Vulnerability(release, (str(known["id"]), *aliases), tuple(fixed_in), text.partition("\n")[0])


def _answer(index: httpx.Client, name: str, version: str) -> list[Vulnerability] | UnknownError:
    try:
        return vulnerabilities(index, name, version)
    except UnknownError as error:
        return error


def _judge(
    found: list[Vulnerability], unknown: list[UnknownError], accepted: Mapping[str, str], num_releases: int
) -> int:
    refused = [each for each in found if not accepted.keys() & set(each.ids)]
    for each in refused:
        _say(str(each))
    told = {name for each in found for name in each.ids}
    for name in sorted(accepted.keys() - told):
        _say(f"{name} is accepted, and no release has it any more: remove it from the list")
    if unknown:
        _say(f"{len(unknown)} of {num_releases} dependencies are not audited, first: {unknown[0]}")
    if not refused:
        _say(f"{num_releases - len(unknown)} dependencies audited: no known vulnerability, {len(found)} accepted")
    return 1 if refused else 0


def _accepted(path: Path) -> dict[str, str]:
    """Return the reason by the id of each vulnerability that is accepted."""
    accepted = tomllib.loads(path.read_text())
    for name, reason in accepted.items():
        if not isinstance(reason, str) or not reason.strip():
            raise SystemExit(f"{path}: {name} needs a reason")
    return accepted


def _lines(path: Path) -> Iterator[str]:
    return (line.partition("#")[0] for line in path.read_text().splitlines())


def _say(line: str) -> None:
    sys.stdout.write(f"audit: {line}\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", default="https://pypi.org/pypi")
    parser.add_argument("--constraints", type=Path, default=_ROOT / "constraints.txt")
    parser.add_argument("--accepted", type=Path, default=_ROOT / ".ci" / "accepted.toml")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
