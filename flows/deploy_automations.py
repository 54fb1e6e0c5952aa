"""What the server does by itself when runs go wrong, as automations to deploy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState, PauseDeployment, SendNotification
from prefect.events.schemas.automations import Automation, AutomationCore, EventTrigger, Posture
from prefect.exceptions import ObjectNotFound

from rollmill.errors import JobError
from rollmill.flows.deploy_jobs import TAG
from rollmill.flows.deploy_settings import AutomationsSettings
from rollmill.flows.deploying import Piece, Values, put_automation

_ENDED = {"Completed", "Failed", "Crashed", "Cancelled", "TimedOut"}
_LEFT_PENDING = {"Running", "Retrying", "Scheduled", "AwaitingRetry", "AwaitingConcurrencySlot", "Cancelling", *_ENDED}
_LEFT_RUNNING = {"Paused", "Suspended", "AwaitingRetry", "Scheduled", *_ENDED}
_RUN_FAILED = "Flow run encountered an exception: RunFailedError: "
"""How the state message of a run begins that worked, and ended without publishing."""

_HEARTBEAT = "prefect.flow-run.heartbeat"
_FLOW_RUNS = {"prefect.resource.id": "prefect.flow-run.*"}
_OUR_TAG = {"prefect.resource.id": f"prefect.tag.{TAG}", "prefect.resource.role": "tag"}


@dataclass(frozen=True)
class AutomationPiece(Piece):
    """An automation, found again by its name; one that is switched off stays off."""

    client: SyncPrefectClient
    automation: AutomationCore
    kind: ClassVar[str] = "automation"

    @property
    def name(self) -> str:
        return self.automation.name

    def wanted(self) -> Values:
        return _values(self.automation)

    def current(self) -> Values | None:
        found = self._found()
        return None if found is None else _values(found)

    def make(self, wanted: Values) -> None:  # noqa: ARG002  (they are the automation's own)
        self.client.create_automation(self.automation)

    def change(self, wanted: Values, fields: Sequence[str]) -> None:  # noqa: ARG002  (Prefect puts them all at once)
        found = self._found()
        assert found is not None
        put_automation(self.client, found.id, self.automation, found.enabled)

    def _found(self) -> Automation | None:
        return next(iter(self.client.read_automations_by_name(self.name)), None)


def automation_pieces(client: SyncPrefectClient, settings: AutomationsSettings) -> Iterator[AutomationPiece]:
    """Yield the automations that the settings ask for. Raises JobError when there is no block to notify."""
    block = settings.notify and _notification_block(client, settings.notify)
    for automation in _automations(settings):
        told = [] if not block else [_notification(block, automation)]
        yield AutomationPiece(client, automation.model_copy(update={"actions": [*automation.actions, *told]}))


def _automations(settings: AutomationsSettings) -> Iterator[AutomationCore]:
    if settings.zombie_runs is not None:
        yield _zombie_runs(settings.zombie_runs.seconds_without_heartbeat)
    if settings.pending_runs is not None:
        yield _pending_runs(settings.pending_runs.seconds)
    if settings.failed_runs is not None:
        yield _failed_runs(settings.failed_runs.pause)


def _zombie_runs(seconds: int) -> AutomationCore:
    """Each heartbeat must be followed by another, or by the run's end."""
    return AutomationCore(
        name="rollmill: runs without heartbeat",
        description=f"Marks a run Crashed that has been silent for {seconds} s. What it stored is kept: run it again.",
        trigger=EventTrigger(
            after={_HEARTBEAT},
            expect={_HEARTBEAT, *map(_event, _LEFT_RUNNING)},
            match=_FLOW_RUNS,
            match_related=_OUR_TAG,
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            within=timedelta(seconds=seconds),
        ),
        actions=[_crash(f"no heartbeat for {seconds} s; what is stored is kept, and a retry goes on from there")],
    )


def _pending_runs(seconds: int) -> AutomationCore:
    return AutomationCore(
        name="rollmill: runs pending too long",
        description=f"Marks a run Crashed that a worker took and that did not begin within {seconds} s.",
        trigger=EventTrigger(
            after={_event("Pending")},
            expect=set(map(_event, _LEFT_PENDING)),
            match=_FLOW_RUNS,
            match_related=_OUR_TAG,
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            within=timedelta(seconds=seconds),
        ),
        actions=[_crash(f"pending for {seconds} s: its process never began; look at the worker, then retry")],
    )


def _failed_runs(pause: bool) -> AutomationCore:
    """The next night would meet the same scorer, or the same engine: nothing is lost by waiting for a person."""
    return AutomationCore(
        name="rollmill: runs that end without publishing",
        description=f"{'Pauses the deployment of' if pause else 'Tells of'} a run in which too many rewards failed, or "
        "shards did.",
        trigger=EventTrigger(
            expect={_event("Failed")},
            match={**_FLOW_RUNS, "prefect.state-message": f"{_RUN_FAILED}*"},
            match_related=_OUR_TAG,
            for_each={"prefect.resource.id"},
            posture=Posture.Reactive,
            threshold=1,
            within=timedelta(0),
        ),
        actions=[PauseDeployment(source="inferred")] if pause else [],
    )


def _crash(message: str) -> ChangeFlowRunState:
    return ChangeFlowRunState(state=StateType.CRASHED, name="Crashed", message=message)


def _event(state: str) -> str:
    return f"prefect.flow-run.{state}"


def _values(automation: AutomationCore) -> Values:
    return {
        "description": automation.description,
        "trigger": automation.trigger,
        "actions": automation.actions,
    }


def _notification_block(client: SyncPrefectClient, slug: str) -> UUID:
    kind, _, name = slug.partition("/")
    try:
        return client.read_block_document_by_name(name, kind).id
    except ObjectNotFound:
        raise JobError(
            f"automations.notify: the Prefect server has no block {slug}; make it under Blocks in the Prefect UI"
        ) from None


def _notification(block: UUID, automation: AutomationCore) -> SendNotification:
    return SendNotification(
        block_document_id=block,
        subject=automation.name,
        body="{{ flow_run.name }} of {{ deployment.name }}: {{ automation.description }}\n{{ flow_run|ui_url }}",
    )
