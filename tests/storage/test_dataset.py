"""The torch dataset, and the runner, inside the worker processes of a DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from reading_builders import all_ids, ids, publish, published
from store_builders import Place
from torch.utils.data import DataLoader, IterableDataset

from rollmill import CachedRolloutRunner, RolloutDataset
from rollmill.errors import InputError, ObjectMissingError
from rollmill.storage.results import RolloutResult

METHODS = pytest.mark.parametrize("method", ["fork", "spawn"])


def loader(dataset: IterableDataset[RolloutResult], method: str | None) -> DataLoader[RolloutResult]:
    if method is None:
        return DataLoader(dataset, batch_size=None)
    return DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=method)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@METHODS
def test_workers_share_an_epoch_without_a_duplicate(shared_place: Place, tmp_path: Path, method: str) -> None:
    if shared_place.storage_options and method == "spawn":
        pytest.skip("one store is enough for the slower start")
    publish(shared_place.objects())
    dataset = RolloutDataset(shared_place.store(), prompts_per_batch=3, cache_dir=tmp_path / "cache")
    next(iter(dataset))  # connections and threads of the parent must not reach the children
    results = list(loader(dataset, method))
    assert sorted(ids(results)) == sorted(all_ids(20))
    for result in results:
        _, mask = result.responses, result.response_mask
        assert mask.any(dim=2).all()


def test_an_iteration_is_one_epoch_of_the_version_that_was_newest_when_it_was_made() -> None:
    store = published()
    dataset = RolloutDataset(store, prompts_per_batch=6)
    publish(store.objects, "b", policy_version=2)
    first, again = ids(loader(dataset, None)), ids(loader(dataset, None))
    assert first == again
    assert sorted(first) == sorted(all_ids(20))
    assert (dataset.version, RolloutDataset(store).version) == (1, 2)
    dataset.set_epoch(1)
    assert sorted(second := ids(loader(dataset, None))) == sorted(first)
    assert second != first


def test_the_dataset_gives_what_a_runner_gives() -> None:
    store = published()
    runner = CachedRolloutRunner(store, prompts_per_batch=6, seed=3)
    expected = [runner()[0].prompt_ids for _ in range(8)]
    dataset = RolloutDataset(store, prompts_per_batch=6, seed=3, num_epochs=2)
    assert [result.prompt_ids for result in dataset] == expected
    endless = iter(RolloutDataset(store, prompts_per_batch=6, seed=3, num_epochs=None))
    assert [next(endless).prompt_ids for _ in range(8)] == expected


def test_ranks_and_workers_together_share_an_epoch() -> None:
    store = published(num_prompts=25)
    parts = [ids(loader(RolloutDataset(store, 2, rank=rank, world_size=3), None)) for rank in range(3)]
    assert sorted(name for part in parts for name in part) == sorted(all_ids(25))


def test_a_version_that_is_not_there_and_no_epochs_are_refused() -> None:
    store = published()
    with pytest.raises(ObjectMissingError, match="has no version 7"):
        RolloutDataset(store, version=7)
    with pytest.raises(InputError, match="num_epochs must be at least 1, got 0"):
        RolloutDataset(store, num_epochs=0)


class Running(IterableDataset[RolloutResult]):
    """A user's own dataset around a runner, which has been used before the workers start."""

    def __init__(self, runner: CachedRolloutRunner) -> None:
        self.runner = runner

    def __iter__(self) -> Iterator[RolloutResult]:
        for _ in range(3):
            yield self.runner()[0]
            self.runner.step()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@METHODS
def test_a_runner_goes_on_inside_workers(tmp_path: Path, method: str) -> None:
    store = publish(Place(str(tmp_path)).objects())
    runner = CachedRolloutRunner(store, prompts_per_batch=3)
    runner()
    results = list(loader(Running(runner), method))
    assert [result.prompt_ids for result in results[::2]] == [result.prompt_ids for result in results[1::2]]
    assert [runner()[0].prompt_ids for _ in range(3)] == [result.prompt_ids for result in results[::2]]
