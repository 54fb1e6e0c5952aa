"""Prints the Kubernetes job that Prefect's worker makes of a base job template, and what is wrong with manifests.

Run by the Python of `make test-deployments`, which has Prefect's Kubernetes worker and the schemas of Kubernetes:
`kubernetes_jobs.py job TEMPLATE.yaml` with job variables as JSON on standard input; `kubernetes_jobs.py check` with a
JSON list of manifests on standard input.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any
from uuid import uuid4

import kubernetes_validate
import yaml
from prefect.client.schemas.objects import FlowRun
from prefect_kubernetes.worker import KubernetesWorkerJobConfiguration

VERSION = "1.33"


def job(template: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest of one flow run's job."""
    configuration = asyncio.run(KubernetesWorkerJobConfiguration.from_template_and_values(template, variables))
    configuration.prepare_for_flow_run(FlowRun(id=uuid4(), flow_id=uuid4(), name="rollout-arithmetic-v12"))
    manifest: dict[str, Any] = json.loads(json.dumps(configuration.job_manifest))
    return manifest


def faults(manifest: dict[str, Any]) -> list[str]:
    """Return what the schema of Kubernetes says against a manifest; a field that it does not know is a fault."""
    try:
        kubernetes_validate.validate(manifest, VERSION, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{manifest['kind']} {'.'.join(map(str, error.path))}: {error.message}"]
    return []


if __name__ == "__main__":
    given = json.load(sys.stdin)
    if sys.argv[1] == "job":
        with open(sys.argv[2]) as file:
            sys.stdout.write(json.dumps(job(yaml.safe_load(file), given)))
    else:
        sys.stdout.write(json.dumps([fault for manifest in given for fault in faults(manifest)]))
