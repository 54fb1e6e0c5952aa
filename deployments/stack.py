"""The whole stack on this machine, for one run of the nightly; nothing stays behind.

    python deployments/stack.py
    python deployments/stack.py --change prompts.limit=2 --change sampling.max_tokens=16
    python deployments/stack.py --every 60

It starts Postgres, a Prefect server on it, SeaweedFS as S3 and a process worker, each on free ports of the loopback;
sets the server up with `rollmill deploy`; runs a deployment once, at once or by its schedule; prints what was
published; and ends everything.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx
import yaml
from stack_services import BUCKET, Stack, running_stack, told, wait_until, worker

HERE = Path(__file__).parent
_SECONDS_TO_RUN = 3600.0


def main() -> None:
    """Bring the stack up, run the deployment, show what it made, and take all of it down, whatever happens."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="rollmill-stack-") as scratch:
        folder = Path(arguments.folder or scratch).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        settings = _settings(arguments, folder)
        with running_stack(folder) as stack:
            told(stack.run("rollmill.cli", "deploy", str(settings)))
            told(f"again: {stack.run('rollmill.cli', 'deploy', str(settings))}")
            with worker(stack, arguments.pool):
                _run_once(stack, arguments.deployment, by_schedule=arguments.every is not None)
            _show(stack, arguments.store)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", type=Path, default=HERE / "s3-team.yaml", help="what `rollmill deploy` sets up")
    parser.add_argument("--deployment", default="rejection-sampling/nightly-sums", help="what is run")
    parser.add_argument("--pool", default="machines", help="the pool that the worker takes runs of")
    parser.add_argument("--store", default=f"s3://{BUCKET}/rollouts", help="where the deployment's job publishes")
    parser.add_argument("--change", action="append", default=[], help="a change of the job, as prompts.limit=2")
    parser.add_argument("--every", type=int, metavar="SECONDS", help="run by a schedule of this interval, not at once")
    parser.add_argument("--folder", help="keep all logs in this folder")
    return parser.parse_args()


def _settings(arguments: argparse.Namespace, folder: Path) -> Path:
    """Write the settings with the changes of the command line, and return their file."""
    settings: dict[str, Any] = yaml.safe_load(arguments.settings.read_text())
    for deployment in settings["deployments"]:
        deployment["job"] = str((arguments.settings.parent / deployment["job"]).absolute())
        if deployment["name"] == arguments.deployment.rpartition("/")[2]:
            deployment["changes"] = [*deployment.get("changes", []), *arguments.change]
            if arguments.every is not None:
                deployment["schedules"] = [{"interval_seconds": arguments.every}]
    changed = folder / "team.yaml"
    changed.write_text(yaml.safe_dump(settings))
    return changed


def _run_once(stack: Stack, deployment: str, *, by_schedule: bool) -> None:
    """Let the deployment run once, and wait until it has. Raises SystemExit when it does not complete."""
    if not by_schedule:
        stack.run("prefect", "deployment", "run", deployment)
    told(f"run        {deployment}, {'at its next scheduled time' if by_schedule else 'now'}")
    ended: list[dict[str, Any]] = []

    def has_ended() -> bool:
        ended[:] = _ended_runs(stack, deployment.rpartition("/")[2], ["COMPLETED", "FAILED", "CRASHED"])
        return bool(ended)

    wait_until(has_ended, f"a run of {deployment}", _SECONDS_TO_RUN)
    first = ended[0]
    told(f"           {first['name']}: {first['state']['name']} after {first['total_run_time']:.0f} s")
    if first["state"]["type"] != "COMPLETED":
        raise SystemExit(first["state"]["message"])


def _ended_runs(stack: Stack, deployment: str, states: list[str]) -> list[dict[str, Any]]:
    asked = {
        "deployments": {"name": {"any_": [deployment]}},
        "flow_runs": {"state": {"type": {"any_": states}}},
        "sort": "END_TIME_DESC",
    }
    reply = httpx.post(f"{stack.environment['PREFECT_API_URL']}/flow_runs/filter", json=asked, trust_env=False)
    reply.raise_for_status()
    runs: list[dict[str, Any]] = reply.json()
    return runs[::-1]


def _show(stack: Stack, store: str) -> None:
    told(f"\n{stack.run('rollmill.cli', 'ls', store)}")
    told(stack.run("rollmill.cli", "verify", store))
    told(stack.run("rollmill.cli", "show", store, "--groups", "3"))


if __name__ == "__main__":
    main()
