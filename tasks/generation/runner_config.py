"""The job section that says where the engines are."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

AUTO = "auto"

_NAMED_OTHERWISE = {"CPU": "num_cpus", "GPU": "num_gpus"}
_CLUSTER_ADDRESS = r"^(auto|[^/\s]+:\d+)$"


def _auto_is_unset(value: object) -> object:
    return None if value == AUTO else value


class LocalRunner(BaseModel):
    """Engines as processes of the machine that the flow runs on, one for each of engine.devices."""

    model_config = ConfigDict(extra="forbid", title="Local")

    type: Literal["local"] = Field(description="local: one engine process a device of this machine.")


LOCAL = LocalRunner(type="local")


class RayRunner(BaseModel):
    """Engines as actors of a Ray cluster, of which the machine that the flow runs on is a node. Needs the extra ray."""

    model_config = ConfigDict(extra="forbid", title="Ray")

    type: Literal["ray"] = Field(description="ray: one actor a device, on whichever nodes of the cluster have room.")
    address: str = Field(
        default=AUTO,
        pattern=_CLUSTER_ADDRESS,
        description="The cluster: host:port of its head, or auto for the one that RAY_ADDRESS names or that this "
        "machine belongs to. Jobs from the Prefect API may only say auto.",
    )
    num_engines: Annotated[int | None, BeforeValidator(_auto_is_unset)] = Field(
        default=None,
        ge=1,
        description="How many engines there are at most. Those that find no room yet wait for it and join in when "
        "the cluster grows; an autoscaler sees them waiting. Unset or auto: as many as the cluster has room for in all "
        "when the run starts.",
    )
    num_gpus: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="GPUs that an engine takes. Less than 1 puts several engines on a GPU; 0 is for engines on CPUs.",
    )
    num_cpus: float = Field(
        default=1.0, ge=0, description="CPU cores that an engine takes, and its threads; more speed up a CPU's engine."
    )
    resources: dict[str, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict,
        description="What else a node must have for an engine, by the names that the cluster gives its resources.",
    )
    seconds_to_place: float = Field(
        default=600.0, gt=0, description="How long a shard waits for room in the cluster while no engine has any."
    )

    @model_validator(mode="after")
    def _an_engine_takes_something(self) -> RayRunner:
        for name, field in _NAMED_OTHERWISE.items():
            if name in self.resources:
                raise ValueError(f"resources: {name} is said by {field}")
        if not self.needs:
            raise ValueError("an engine must take something: set num_gpus, num_cpus or resources")
        return self

    @property
    def needs(self) -> dict[str, float]:
        """What an engine takes, by Ray's names; nothing that is 0."""
        needs = {"GPU": self.num_gpus, "CPU": self.num_cpus, **self.resources}
        return {name: amount for name, amount in needs.items() if amount}


RunnerConfig = Annotated[LocalRunner | RayRunner, Field(discriminator="type")]
