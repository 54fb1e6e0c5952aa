"""The public names, and the wheel that is built out of the sdist."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import rollmill

ROOT = Path(__file__).parents[1]

_IMPORT_EVERYTHING = """
import importlib, json, pkgutil, rollmill
names = [module.name for module in pkgutil.walk_packages(rollmill.__path__, "rollmill.")]
names = [name for name in names if not name.endswith("__main__")]
for name in names:
    importlib.import_module(name)
public = [getattr(rollmill, name).__name__ for name in rollmill.__all__]
print(json.dumps({"home": rollmill.__file__, "modules": names, "public": public}))
"""


def run(*command: str | Path) -> str:
    """Run a command away from the source tree and return what it printed."""
    ended = subprocess.run([str(part) for part in command], cwd="/", capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def modules_after(statement: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter holds after a statement."""
    return set(run(sys.executable, "-c", f"{statement}; import sys; print(*sys.modules, sep='\\n')").split())


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built out of the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


def test_a_wheel_out_of_the_sdist_imports_every_room_in_a_fresh_environment(
    distributions: Path, tmp_path: Path
) -> None:
    """The wheel's dependencies come from this environment; rollmill itself comes from the wheel alone."""
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    (wheel,) = distributions.glob("*.whl")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--quiet", wheel)
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    imported = json.loads(run(python, "-c", _IMPORT_EVERYTHING).splitlines()[-1])
    assert Path(imported["home"]).is_relative_to(tmp_path)
    assert imported["public"] == rollmill.__all__
    expected = {
        f"rollmill.{room}.{path.relative_to(ROOT / room).with_suffix('').as_posix().replace('/', '.')}"
        for room in ("flows", "tasks", "storage")
        for path in (ROOT / room).rglob("*.py")
        if path.name not in ("__init__.py", "__main__.py")
    }
    assert expected <= set(imported["modules"])
    assert "run" in run(tmp_path / "venv" / "bin" / "rollmill", "--help")


def test_the_sdist_holds_the_rooms_and_the_tests_but_no_rollouts(distributions: Path) -> None:
    (sdist,) = distributions.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        tops = {name.split("/")[1] for name in archive.getnames() if name.count("/") >= 1}
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"src", "tests", "docs", "deployments", "README.md", "LICENSE"} <= tops
    assert {"src/rollmill/flows/rollout.py", "src/rollmill/tasks/shards.py", "src/rollmill/storage/store.py"} <= names
    assert "rollouts" not in tops


def test_the_wheel_holds_the_parts_of_the_report_s_page(distributions: Path) -> None:
    (wheel,) = distributions.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert {f"rollmill/tasks/report/page.{kind}" for kind in ("html", "css", "js")} <= set(archive.namelist())


def test_importing_storage_brings_in_neither_prefect_nor_transformers() -> None:
    loaded = modules_after("import rollmill.storage.store, rollmill.storage.publish, rollmill.storage.verify")
    assert not loaded & {"prefect", "transformers", "rollmill.flows", "rollmill.tasks"}


def test_importing_rollmill_and_asking_for_help_load_nothing_heavy() -> None:
    loaded = modules_after("import rollmill, rollmill.cli")
    assert not loaded & {"prefect", "transformers", "torch", "pyarrow", "pydantic"}


def test_every_public_name_is_what_it_says() -> None:
    assert [getattr(rollmill, name).__name__ for name in rollmill.__all__] == rollmill.__all__
    assert set(rollmill.__all__) <= set(dir(rollmill))
    with pytest.raises(AttributeError, match="no attribute 'Rolout'"):
        rollmill.Rolout  # noqa: B018
