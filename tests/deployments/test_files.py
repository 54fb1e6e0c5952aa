"""The files in deployments/ that cannot run here: their linters, schemas and programs have nothing against them.

Linters have an environment of their own, which `make test-deployments` makes; without it only the rest is checked.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import yaml

from rollmill.flows.deploy_settings import load_settings
from rollmill.flows.job_file import load_job

ROOT = Path(__file__).parents[2]
FILES = ROOT / "deployments"
LINTERS = os.environ.get("ROLLMILL_LINTERS", "")
SETTINGS = [FILES / "team.yaml", FILES / "s3-team.yaml", FILES / "kubernetes" / "team.yaml"]
DOCKERFILES = [FILES / "Dockerfile", FILES / "Dockerfile.cuda"]

needs_linters = pytest.mark.skipif(not LINTERS, reason="needs linters: make test-deployments")


def linter(name: str, *arguments: str, given: Any = None) -> subprocess.CompletedProcess[str]:
    """Run a program of the linters' environment."""
    return subprocess.run(
        [f"{LINTERS}/{name}", *arguments],
        input=json.dumps(given), capture_output=True, text=True, timeout=120, check=False, cwd=ROOT,
        env={**os.environ, "DO_NOT_TRACK": "1", "PREFECT_API_URL": "http://127.0.0.1:9/api"},  # which nobody asks
    )  # fmt: skip


def manifest_faults(manifests: list[dict[str, Any]]) -> list[str]:
    ended = linter("python", "tests/kubernetes_jobs.py", "check", given=manifests)
    assert ended.returncode == 0, ended.stderr
    found: list[str] = json.loads(ended.stdout)
    return found


@pytest.mark.parametrize("path", SETTINGS, ids=lambda path: str(path.relative_to(FILES)))
def test_every_settings_file_names_jobs_that_are_jobs(path: Path) -> None:
    settings = load_settings(path)
    assert [load_job(deployment.job, deployment.changes).name for deployment in settings.deployments]
    for pool in settings.work_pools:
        assert pool.base_job_template is None or pool.base_job_template.exists()


@needs_linters
@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_hadolint_has_nothing_against_the_dockerfiles(path: Path) -> None:
    ended = linter("hadolint", str(path))
    assert (ended.returncode, ended.stdout) == (0, "")


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_is_pinned_and_runs_as_no_root_with_only_what_the_package_is_made_of(path: Path) -> None:
    lines = path.read_text().splitlines()
    bases = [line.split()[1] for line in lines if line.startswith("FROM")]
    assert all(re.fullmatch(r"python:\d+\.\d+\.\d+-slim-bookworm", base) for base in bases)
    assert [line for line in lines if line.startswith("USER")] == ["USER 10001"]
    assert "--constraint constraints.txt" in path.read_text()
    kept = path.with_name(f"{path.name}.dockerignore").read_text().splitlines()
    named = {line[1:] for line in kept if line.startswith("!")}
    assert "*" in kept
    assert {"src", "flows", "tasks", "storage", "pyproject.toml", "constraints.txt"} <= named
    assert all((ROOT / name).exists() for name in named)


@needs_linters
def test_the_compose_file_is_one_by_the_specification() -> None:
    ended = linter("check-jsonschema", "--builtin-schema", "vendor.compose-spec", "deployments/compose.yaml")
    assert ended.returncode == 0, ended.stdout


def test_the_compose_file_pins_images_opens_only_the_loopback_and_holds_no_secret() -> None:
    text = (FILES / "compose.yaml").read_text()
    services = yaml.safe_load(text)["services"]
    for service in services.values():
        image = service["image"]
        assert image == "rollmill:cpu" or re.search(r":\d+\.\d+", image), image
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        for needed in service.get("depends_on", {}):
            assert needed in services
    assert set(re.findall(r"\$\{(\w+)(:\?)?\}", text)) == {
        (name, ":?") for name in ("POSTGRES_PASSWORD", "AWS_SECRET_ACCESS_KEY", "S3_ADMIN_SECRET")
    }


def test_seaweedfs_knows_every_option_that_compose_gives_it() -> None:
    services = yaml.safe_load((FILES / "compose.yaml").read_text())["services"]
    weed = Path(sysconfig.get_path("scripts")) / "weed"
    known = subprocess.run([weed, "server", "-h"], capture_output=True, text=True, timeout=60, check=False)
    options = set(re.findall(r"^  -([\w.]+)", known.stdout + known.stderr, re.MULTILINE))
    command, *given = services["s3"]["command"]
    assert command == "server"
    assert {option.lstrip("-").partition("=")[0] for option in given} <= options


def test_the_identities_of_compose_are_json_once_their_secrets_are_in() -> None:
    content = yaml.safe_load((FILES / "compose.yaml").read_text())["configs"]["s3"]["content"]
    identities = json.loads(re.sub(r"\$\{\w+:\?\}", "secret", content))["identities"]
    assert {identity["name"]: identity["actions"] for identity in identities} == {
        "admin": ["Admin"],
        "rollmill": ["Read:rollmill", "Write:rollmill", "List:rollmill"],
    }


@needs_linters
def test_a_run_on_kubernetes_is_a_job_with_gpus_time_to_end_and_no_rights() -> None:
    deployment = load_settings(FILES / "kubernetes" / "team.yaml").deployments[0]
    variables = {**deployment.job_variables, "gpus": 4, "grace_period_seconds": 90, "env": {"A": "b"}}
    ended = linter(
        "python", "tests/kubernetes_jobs.py", "job", "deployments/kubernetes/work-pool.yaml", given=variables
    )
    assert ended.returncode == 0, ended.stderr
    job = json.loads(ended.stdout)
    pod = job["spec"]["template"]["spec"]
    for field in ("parallelism", "completions"):  # which Prefect wants there, and Kubernetes drops
        assert pod.pop(field) == 1
    assert manifest_faults([job]) == []
    (container,) = pod["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 4
    assert pod["terminationGracePeriodSeconds"] == 90
    assert pod["securityContext"]["runAsNonRoot"]
    assert {"name": "A", "value": "b"} in container["env"]
    assert {"name": "PREFECT_FLOW_RUN_EXECUTE_SIGTERM_BEHAVIOR", "value": "reschedule"} in container["env"]
    assert "{{" not in json.dumps(job)


@needs_linters
def test_the_worker_of_kubernetes_and_the_pods_of_ray_are_what_kubernetes_takes() -> None:
    worker = list(yaml.safe_load_all((FILES / "kubernetes" / "worker.yaml").read_text()))
    assert {manifest["kind"] for manifest in worker} == {"ServiceAccount", "Role", "RoleBinding", "Deployment"}
    assert manifest_faults([*worker, *ray_pods()]) == []


def ray_pods() -> list[dict[str, Any]]:
    """Return the pods of the Ray cluster, as manifests of their own."""
    cluster = yaml.safe_load((FILES / "ray-cluster.yaml").read_text())["spec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"ray-{place}"}, "spec": group["template"]["spec"]}
        for place, group in enumerate(groups)
    ]


def test_no_engine_is_placed_on_the_head_of_ray_and_each_other_machine_has_a_gpu() -> None:
    cluster = yaml.safe_load((FILES / "ray-cluster.yaml").read_text())["spec"]
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    head, *workers = ray_pods()
    assert "nvidia.com/gpu" not in head["spec"]["containers"][0]["resources"]["limits"]
    assert all(pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] >= 1 for pod in workers)
