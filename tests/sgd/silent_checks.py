"""Models, data sets and checks of "no budget is spent in silence"; tests and planted bugs share them."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from sgd_checks import RecordingNoise, rows, small_plan
from torch import nn

from dpml import PrivateData, PrivateTrainer, sgd
from dpml.errors import ConfigError, ModelError

N, D = 60, 5


class Small(nn.Module):
    """A linear model whose output passes through ``change(self, x)``."""

    def __init__(self, change=None):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            self.layer = nn.Linear(D, 2)
        self.change = change or (lambda model, x: model.layer(x))

    def forward(self, x):
        return self.change(self, x)


def without_grad(model, x):
    with torch.no_grad():
        return model.layer(x)


def as_numbers(model, x):
    return torch.tensor(model.layer(x).tolist(), dtype=x.dtype)


class Remembers(Small):
    """Scales what it gives by the number of its calls."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return self.layer(x) * self.calls


class Behind(Small):
    """Its only used parameter is kept in a list."""

    def __init__(self):
        super().__init__()
        self.kept = [nn.Parameter(torch.ones(2, D))]

    def forward(self, x):
        return x @ self.kept[0].T


def not_initialised():
    model = Small()
    with torch.no_grad():
        model.layer.weight[0, 0] = torch.nan
    return model


CANNOT_LEARN = {
    "detach": (lambda: Small(lambda m, x: m.layer(x).detach()), "do not depend on any trained parameter"),
    "data": (lambda: Small(lambda m, x: x @ m.layer.weight.data.T), "do not depend on any trained parameter"),
    "no_grad": (lambda: Small(without_grad), "do not depend on any trained parameter"),
    "numbers": (lambda: Small(as_numbers), "do not depend on any trained parameter"),
    "input": (lambda: Small(lambda m, x: x[:, :2]), "do not depend on any trained parameter"),
    "behind": (Behind, "do not depend on any trained parameter"),
    "memory": (Remembers, "keeps something of earlier records"),
    "nan": (not_initialised, "'layer.weight' holds NaN or infinity"),
}
"""name → (model, what its ModelError says)."""


def arrays(X=None, y=None, **declared):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(N, D)) if X is None else X
    y = np.arange(len(X)) % 2 if y is None else y
    return PrivateData.from_arrays(X, y, **{"norm_bound": None, "classes": [0, 1], "n_declared": N, **declared})


def trainer(model, **arguments):
    settings = {"method": "dp_sgd", "noise_multiplier": 1.0, "steps": 3, "expected_batch_size": 20, "device": "cpu"}
    return PrivateTrainer(model, **{**settings, "accountant": "rdp", **arguments})


def refused_before_data_are_read(folder: Path) -> None:
    """No record is read, no folder is made and no cap is charged by a run of a model that cannot learn."""
    for name, (make, message) in CANNOT_LEARN.items():
        data, book = arrays(), folder / f"{name}.jsonl"

        def load(*_, name=name, **__):
            raise AssertionError(f"{name}: a record was read")

        data.load = load
        run = trainer(
            make(), run_dir=folder / name, dataset_ledger=book, dataset_epsilon=1e5, dataset_delta=1e-3, delta=1e-5
        )
        with pytest.raises(ModelError, match=message):
            run.fit(data)
        assert not book.exists(), name
        assert not (folder / name).exists(), name


def refused_by_the_engine() -> None:
    """``fit_dp_sgd`` on its own: nothing was charged, nothing drawn."""
    X, y = rows(d=D)
    for name, (make, message) in CANNOT_LEARN.items():
        noise, charged = RecordingNoise(), []
        with pytest.raises(ModelError, match=message):
            sgd.fit_dp_sgd(small_plan(), make(), X, y, noise=noise, reserve=lambda *event, c=charged: c.append(event))
        assert (charged, noise.normals, noise.uniforms) == ([], [], []), name


class Items:
    """A map-style dataset that gives what ``item(i)`` gives."""

    def __init__(self, item, n=N):
        self.item, self.n = item, n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.item(i)


def raising(i):
    raise KeyError(f"secret {i}")


SPOILT = {
    "raising": raising,
    "nan": lambda i: (np.full(D, np.nan), i % 2),
    "shape": lambda i: (np.zeros(D + 1), i % 2),
    "label": lambda i: (np.zeros(D), 7),
}


def dataset(item, lazy=True):
    return PrivateData.from_dataset(Items(item), n_declared=N, classes=[0, 1], feature_shape=D, lazy=lazy)


def shown_by_a_run(data, folder: Path):
    """(all that a run shows outside ``private/``, the result): stdout, stderr, warnings, log lines above INFO."""
    out, err, lines = io.StringIO(), io.StringIO(), []

    class Above(logging.Handler):
        def emit(self, record):
            lines.append(record.getMessage())

    handler = Above(logging.INFO + 1)
    logging.getLogger().addHandler(handler)
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            warnings.catch_warnings(record=True) as caught,
        ):
            warnings.simplefilter("always")
            result = trainer(Small(), run_dir=folder, seed=0).fit(data)
    finally:
        logging.getLogger().removeHandler(handler)
    published = json.loads((folder / "release/result.json").read_text("utf-8"))
    published.pop("ledger")
    lines += [f"{name}: {(folder / 'release' / name).read_text('utf-8')}" for name in ("config.yaml", "schema.json")]
    shown = [out.getvalue(), err.getvalue(), *(str(w.message) for w in caught), *lines, json.dumps(published)]
    names = sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))
    return (shown, names), result


def spoilt_records_show_nowhere(folder: Path) -> None:
    """A run on records that all raise, or are NaN, shows word by word what one on good records shows."""
    good, _ = shown_by_a_run(dataset(lambda i: (np.ones(D) * i / N, i % 2)), folder / "good")
    for name, item in SPOILT.items():
        for lazy in (True, False):
            place = folder / f"{name}{lazy}"
            shown, result = shown_by_a_run(dataset(item, lazy), place)
            assert shown == good, name
            kept = json.loads((place / "private/diagnostics.json").read_text("utf-8"))
            assert "every contribution of all 3 steps was zero" in kept.get("warning", ""), name
            assert result.private["warning"] == kept["warning"]


def the_look_is_never_part_of_a_run(folder: Path) -> None:
    """``fit`` reads every item of a dataset twice at most (the fingerprint and the drawn ones of 3 steps)."""
    reads = []

    def item(i):
        reads.append(i)
        return np.ones(D) * i / N, i % 2

    trainer(Small(), run_dir=folder / "run", expected_batch_size=1, steps=1).fit(dataset(item))
    # the fingerprint reads all N; one step draws a Poisson(1) number more: more than 20 has probability 2e-20
    assert len(reads) <= N + 20


def planned(**changes):
    """A plan with given noise: nothing is calibrated."""
    values = {
        "n_declared": 10**7, "n_features": 3, "n_classes": 2, "model_name": "logreg", "n_parameters": 3,
        "epsilon": None, "delta": 1e-9, "noise_multiplier": 1.0, "steps": 10, **changes,
    }  # fmt: skip
    return sgd.plan_dp_sgd(**values)


def larger_batches_are_refused() -> None:
    """An expected batch with which a sum of more than 2^20 records is at all likely; of fixed size, one that is one."""
    fixed = {"sampling": "fixed_size", "neighboring_relation": "replace_one"}
    for changes in (
        {"expected_batch_size": 2**20},
        {"expected_batch_size": 1_043_000},  # 5.8 standard deviations below: a tail of 4e-9
        {"expected_batch_size": 2**22},
        {"expected_batch_size": 2**20 + 1, **fixed},
        {"expected_batch_size": 2**20 + 1, "n_declared": 2**20 + 1},
    ):
        with pytest.raises(ConfigError, match=r"^expected_batch_size = .* is not allowed: it must be at most 10"):
            planned(**changes)
    for changes in (
        {"expected_batch_size": 1_040_900},
        {"expected_batch_size": 2**20, **fixed},
        {"expected_batch_size": 2**20, "n_declared": 2**20},
    ):
        assert planned(**changes).expected_batch_size == changes["expected_batch_size"]
