"""The model of the cost and the simulation of the product's scheduler agree, and neither grows where it must not."""

from __future__ import annotations

import pytest
from benchmarks.scaling import Machine, estimate, simulate


@pytest.mark.parametrize("workers", [1, 8, 64, 512])
def test_the_model_agrees_with_the_simulation(workers: int) -> None:
    machine = Machine(workers=workers)
    sequences = 2_000_000 * workers
    model, run = estimate(machine, sequences), simulate(machine, sequences)
    assert run.seconds == pytest.approx(model.seconds, rel=0.15)
    assert run.driver_seconds == pytest.approx(model.driver_seconds, rel=0.15)
    assert run.driver_bytes == pytest.approx(model.driver_bytes, rel=0.15)
    assert run.store_bytes == pytest.approx(model.store_bytes, rel=0.3)


def test_deaths_cost_what_was_not_saved() -> None:
    calm = simulate(Machine(workers=16), 10**7)
    rough = simulate(Machine(workers=16, deaths_per_hour=6.0), 10**7)
    assert rough.retries > 5
    assert calm.seconds < rough.seconds < 1.3 * calm.seconds


def test_what_the_driver_hears_grows_with_time_and_workers_only() -> None:
    slow, quick = simulate(Machine(workers=8), 10**6), simulate(Machine(workers=8, rate=10_000.0), 10**7)
    # Ten times the corpus, counted in the same time.
    assert quick.driver_bytes < 1.2 * slow.driver_bytes and quick.shards <= 3 * slow.shards
