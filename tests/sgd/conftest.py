"""Every test starts from the same global torch generator (test data only; the noise under test never uses it)."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded_test_data():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20)
        yield
