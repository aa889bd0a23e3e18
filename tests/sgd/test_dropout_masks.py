"""Dropout in a run: masks that nobody knows, and the caller's generators as they were."""

from __future__ import annotations

import math
import random
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from sgd_checks import small_plan
from torch import nn

from dpml import PrivateData, PrivateTrainer
from dpml.mechanisms import SecretNoise
from dpml.sgd import engine, fit_dp_sgd, randomness


class Witness(nn.Module):
    """Remembers the masks of its dropout outside of itself."""

    masks: list[torch.Tensor] = []  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.drop = nn.Linear(3, 2), nn.Dropout(0.5)

    def forward(self, x):
        dropped = self.drop(torch.ones(len(x), 40, dtype=x.dtype))
        if len(x) == 40:  # a batch of the data: made-up records are fewer
            self.masks.append(dropped.detach().clone())
        return self.linear(x) * dropped.mean(1, keepdim=True)


def masks_of_a_run() -> torch.Tensor:
    """The first mask of a batch that holds all 40 records, under the caller's seed 0."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    Witness.masks.clear()
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 3)), np.arange(40) % 2
    plan = small_plan(sample_rate=1.0, expected_batch_size=40, steps=1)
    model = Witness().double().train()
    fit_dp_sgd(plan, model, X, y, noise=SecretNoise(), reserve=lambda event, count: None)
    return torch.cat(Witness.masks)


def nobody_knows_the_masks() -> None:
    first, second = masks_of_a_run(), masks_of_a_run()
    assert first.numel() >= 40 * 40  # equal by chance: 2^-1600
    assert first.shape != second.shape or not torch.equal(first, second)


def test_nobody_knows_the_masks():
    nobody_knows_the_masks()


def test_masks_of_the_callers_seed_are_noticed(monkeypatch):
    monkeypatch.setattr(engine, "own_random_numbers", lambda *arguments, **options: nullcontext())
    with pytest.raises(AssertionError):
        nobody_knows_the_masks()


def test_the_callers_generators_are_as_they_were():
    masks_of_a_run()
    found = torch.rand(3), random.random(), np.random.random()  # noqa: NPY002
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    Witness()  # draws its weights
    assert torch.equal(found[0], torch.rand(3))
    assert found[1:] == (random.random(), np.random.random())  # noqa: NPY002


def test_the_twister_gets_all_its_words_from_the_operating_system():
    """torch's seed on the CPU has 32 bits that count; 624 words have 19,968.  Uniform numbers stay uniform."""
    before = torch.get_rng_state()
    changed = randomness._with_secret_words(before)
    differ = (changed != before).reshape(-1, 8)
    assert int(differ[3:627].any(1).sum()) > 600  # a word that is the same by chance: 2^-32 each
    assert not differ[:3].any()
    assert not differ[627:].any()
    with randomness.own_random_numbers(torch.device("cpu"), unknown=True):
        drawn = torch.rand(100_000, dtype=torch.float64)
    assert abs(float(drawn.mean()) - 0.5) < 6 / math.sqrt(12 * 100_000)  # six standard errors


def test_the_guarantee_names_the_generator_of_the_masks():
    X, y = np.zeros((4, 3)), np.array([0, 1, 0, 1])
    data = PrivateData.from_arrays(X, y, norm_bound=1.0, classes=[0, 1], n_declared=50)
    for model, named in ((nn.Sequential(nn.Dropout(0.1), nn.Linear(3, 2)), True), (nn.Linear(3, 2), False)):
        plan = PrivateTrainer(model=model, method="dp_sgd", epsilon=1.0, steps=2).plan(data)
        assert any("dropout" in text for text in plan.guarantee.assumptions) == named
