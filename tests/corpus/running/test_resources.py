"""What workers are asked for, and how a model's weights travel to them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from normlens.corpus.counting.worker import batch_size_for
from normlens.corpus.running.engines import InProcess, ProcessPool, Resources, engine_of
from normlens.corpus.running.ray_engine import RayEngine, _array_of, _parameter_of
from normlens.corpus.running.run import Progress
from normlens.errors import InputError


@pytest.mark.parametrize(
    ("workers", "fewest", "most"), [(None, 1, 1), (3, 3, 3), ("3", 3, 3), ("2:8", 2, 8), ("0:4", 0, 4)]
)
def test_workers_are_a_number_or_a_range(workers: int | str | None, fewest: int, most: int) -> None:
    found = Resources.of(workers)
    assert (found.fewest, found.most) == (fewest, most)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"workers": "two"}, "MIN:MAX"),
        ({"workers": "4:2"}, "no more at least than at most"),
        ({"workers": "0:0"}, "at least one worker"),
        ({"workers": "1:1000000"}, "at most 10000 workers"),
        ({"workers": 1, "threads": 0}, "at least one thread"),
        ({"workers": 1, "gpus": -1}, "a share of one GPU"),
        ({"workers": 1, "gpus": 1.5}, "or whole ones"),
    ],
)
def test_odd_wishes_are_one_sentence(given, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Resources.of(**given)


def test_the_engine_follows_from_the_wishes() -> None:
    assert isinstance(engine_of("local", Resources.of(1)), InProcess)
    pool = engine_of("local", Resources.of(3))
    assert isinstance(pool, ProcessPool) and pool.workers == 3
    assert isinstance(engine_of("local", Resources.of("1:1")), InProcess)
    ray = engine_of("ray", Resources.of("2:64", gpus=0.5))
    assert isinstance(ray, RayEngine) and ray.workers == 64
    with pytest.raises(InputError, match="add --engine ray"):
        engine_of("local", Resources.of(1, gpus=1.0))


class FakeCluster:
    """Answers what a cluster has."""

    def __init__(self, **resources: float) -> None:
        self._resources = resources

    def cluster_resources(self) -> dict[str, float]:
        return self._resources


def test_the_fewest_must_fit_and_the_others_may_wait() -> None:
    RayEngine(Resources.of("4:64", gpus=0.5))._check_room(FakeCluster(CPU=8, GPU=2))
    RayEngine(Resources.of("0:64", gpus=1.0))._check_room(FakeCluster(CPU=8))
    with pytest.raises(InputError, match=r"its share of a GPU: 5 workers with 0.5 GPU each .* room for 4"):
        RayEngine(Resources.of("5:64", gpus=0.5))._check_room(FakeCluster(CPU=8, GPU=2))
    with pytest.raises(InputError, match="a processor: 3 workers with 4 CPU each"):
        RayEngine(Resources.of(3, threads=4))._check_room(FakeCluster(CPU=8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8])
@pytest.mark.parametrize("shape", [(3, 4), (5,), (), (0, 3)])
def test_weights_arrive_as_they_were(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    parameter = nn.Parameter(torch.randn(shape).mul(10).to(dtype), requires_grad=False)
    content, kind, size = _array_of(parameter)
    content.flags.writeable = False  # as it lies in the object store
    again = _parameter_of((content, kind, size))
    assert torch.equal(again, parameter) and again.dtype == dtype and again.shape == parameter.shape


def test_progress_knows_its_rate_and_what_is_left() -> None:
    step = Progress(sequences=300, seconds=10.0, fresh=200, total=1300, workers=4, shards=2)
    assert step.rate == 20.0 and step.seconds_left == 50.0
    assert Progress(0, 0.0, 0, 10).seconds_left is None and Progress(5, 1.0, 5, None).seconds_left is None
    assert batch_size_for(torch.device("cpu")) == 8 < batch_size_for(torch.device("meta"))
