"""The shipped S3 policy, on a server that enforces it: enough for all that rollmill does, and for nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import s3fs
from flow_builders import job_values
from prefect_stack import PrefectStack
from seaweedfs import BUCKET, S3Place, running_seaweedfs

from rollmill.flows.rejection_sampling import rejection_sampling
from rollmill.flows.rejection_sampling_job import RejectionSamplingJob
from rollmill.storage.objects import open_objects
from rollmill.storage.probe import probe_store
from rollmill.storage.store import RolloutStore
from rollmill.storage.vacuum import vacuum_store
from rollmill.storage.verify import verify_store

POLICY = Path(__file__).parents[2] / "deployments" / "s3-policy.json"


@pytest.mark.slow
def test_the_policy_lets_a_job_run_be_looked_after_and_read_and_nothing_else(
    stack: PrefectStack, policy: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = POLICY.read_text().replace("arn:aws:s3:::rollmill", f"arn:aws:s3:::{BUCKET}")
    with running_seaweedfs(tmp_path, json.loads(text)) as server:
        place = S3Place(f"s3://{BUCKET}/rollouts", server.endpoint_url, *server.writer)
        for name, value in place.environment.items():
            monkeypatch.setenv(name, value)
        admin = s3fs.S3FileSystem(key=server.admin[0], secret=server.admin[1], endpoint_url=server.endpoint_url)
        for file in sorted(policy.iterdir()):
            admin.pipe_file(f"{BUCKET}/policies/tiny/{file.name}", file.read_bytes())
        admin.pipe_file(f"{BUCKET}/prompts/all.jsonl", prompts.read_bytes())
        selection = {"min_reward": 1, "keep_truncated": True}
        export = {"format": "sft", "out": f"s3://{BUCKET}/training_sets/tiny", "selection": selection}
        values = job_values(policy, prompts, place.url, prompts__source=f"s3://{BUCKET}/prompts/all.jsonl")
        values["policy"]["model"] = f"s3://{BUCKET}/policies/tiny"
        job = RejectionSamplingJob.model_validate({**values, "export": export})
        for _ in range(2):  # the second replaces the first one's set
            assert rejection_sampling(job).training_set.manifest.records > 0
        store = RolloutStore(place.url)
        assert store.latest().num_rows == 96
        assert verify_store(store).problems == ()
        assert [finding.detail for finding in probe_store(open_objects(place.url)) if not finding.honoured] == []
        assert vacuum_store(open_objects(place.url), older_than=timedelta(hours=1)).removed == ()
        refused(s3fs.S3FileSystem(**place.storage_options, skip_instance_cache=True))


def refused(s3: s3fs.S3FileSystem) -> None:
    """Try what nobody needs: another's objects, changing policies and prompts, buckets."""
    attempts: list[Callable[[], Any]] = [
        lambda: s3.pipe_file(f"{BUCKET}/policies/tiny/config.json", b"{}"),
        lambda: s3.call_s3("delete_object", Bucket=BUCKET, Key="prompts/all.jsonl"),
        lambda: s3.cat_file(f"{BUCKET}/ready"),
        lambda: s3.pipe_file(f"{BUCKET}/elsewhere", b"x"),
        lambda: s3.call_s3("create_bucket", Bucket="another-bucket"),
        lambda: s3.call_s3("delete_bucket", Bucket=BUCKET),
    ]
    for attempt in attempts:
        with pytest.raises(PermissionError):
            attempt()
