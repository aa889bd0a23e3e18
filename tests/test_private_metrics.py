"""Metrics of a private hold-out: their whole numbers, sensitivity, noise and intervals."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stage_checks as checks
import torch
from scipy import sparse, stats
from sklearn.metrics import log_loss, roc_auc_score
from stage_checks import RELATIONS, linear_model, rows_of

from dpml import PrivateData, PrivateTrainer, accounting
from dpml.errors import ConfigError, ModelError
from dpml.mechanisms import FixedNoise
from dpml.release import PrivateModel
from dpml.stages.metrics import CELLS, STEPS, MetricsMaker, area, partial_sum_bound
from dpml.stages.scoring import class_score, decisions

CLASSES = 3


def softmax_model() -> PrivateModel:
    return PrivateModel("softmax", {"weight": np.array([[4.0, 0.0], [0.0, 3.0], [-2.0, -2.0]])}, (0, 1, 2), {})


def ridge_model() -> PrivateModel:
    return PrivateModel("ridge", {"weight": np.array([1.5, -0.5])}, (), {}, settings={"target_bounds": [10.0, 30.0]})


def maker(
    n_classes: int = 2, *, epsilon: float = 1.0, relation: str = "add_remove", hinge: bool = False
) -> MetricsMaker:
    return MetricsMaker(n_classes, hinge, epsilon, relation, 20.0 if n_classes == 0 else 0.0)


CASES: dict[str, tuple[MetricsMaker, PrivateModel]] = {
    "two classes": (maker(), linear_model()),
    "three classes": (maker(CLASSES), softmax_model()),
    "margins": (maker(hinge=True), linear_model("linear_svm")),
    "regression": (maker(0), ridge_model()),
}


def targets_of(case: str, n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2)) * rng.choice([0.1, 1.0, 50.0], size=(n, 1))
    if case == "regression":
        return X, rng.uniform(-1, 1, n)
    return X, rng.integers(0, CLASSES if case == "three classes" else 2, n)


# -- whole numbers ----------------------------------------------------------------------------------------------------
def test_tallies_are_those_of_scikit_learn() -> None:
    X, y = rows_of(500)
    model, tallies = linear_model(), maker().tallies(linear_model(), *rows_of(500))
    probabilities = model.probabilities(X)
    assert tallies["accuracy"].tolist() == [
        int((model.predictions(X) == y).sum()),
        int((model.predictions(X) != y).sum()),
    ]
    clip = 4 * math.log(2)
    mean = clip * (0.5 + tallies["loss"][0] / STEPS / 500)
    assert mean == pytest.approx(log_loss(y, probabilities), abs=clip / STEPS)  # no loss here reaches the clip
    rounded = np.floor(probabilities[:, 1] * CELLS)
    shares = [np.cumsum(row) / row.sum() for row in tallies["auc"].reshape(2, CELLS)]
    assert area(*shares) == pytest.approx(roc_auc_score(y, rounded), abs=1e-12)
    assert area(*shares) == pytest.approx(roc_auc_score(y, probabilities[:, 1]), abs=0.01)


def test_losses_are_clipped_to_their_public_bound() -> None:
    X, y = np.array([[9.0, 0.0], [-9.0, 0.0]]), np.array([0, 0])  # log losses 54 and 0
    assert maker().tallies(linear_model(), X, y)["loss"].tolist() == [STEPS // 2 - STEPS // 2]
    hinge = maker(hinge=True)
    assert hinge.loss_bound == 4.0
    assert hinge.tallies(linear_model("linear_svm"), X[:1], y[:1])["loss"].tolist() == [STEPS // 2]


def test_a_regression_s_error_is_in_the_units_of_its_target() -> None:
    X, targets = targets_of("regression", 400)
    tallies = maker(0).tallies(ridge_model(), X, targets)
    truth = 20.0 + 10.0 * targets
    wanted = np.abs(np.clip(20.0 + 10.0 * np.clip(X @ [1.5, -0.5], -1, 1), 10, 30) - truth).mean()
    assert tallies["records"].tolist() == [400]
    assert 20.0 * (0.5 + tallies["mae"][0] / STEPS / 400) == pytest.approx(wanted, abs=20.0 / STEPS)


@pytest.mark.parametrize("case", CASES)
def test_an_empty_hold_out_has_tallies_of_zero(case: str) -> None:
    made, model = CASES[case]
    X, y = targets_of(case, 3)
    tallies = made.tallies(model, X[:0], y[:0])
    assert set(tallies) == set(made.names)
    assert all((values == 0).all() for values in tallies.values())
    found = made.release(model, X[:0], y[:0], FixedNoise(0))
    name = "mae" if case == "regression" else "accuracy"
    assert (found[name]["low"], found[name]["high"]) == (
        0.0,
        20.0 if case == "regression" else 1.0,
    ) or name == "accuracy"
    assert found[name]["low"] <= found[name]["value"] <= found[name]["high"]


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("case", CASES)
def test_one_record_moves_each_tally_by_its_sensitivity(case: str, relation: str) -> None:
    """Random and extreme neighbours; the largest distance that is found is the declared one for counts."""
    made, model = CASES[case]
    made = MetricsMaker(made.n_classes, made.hinge, 1.0, relation, made.target_width)
    X, y = targets_of(case, 60)
    X[:2], X[2:4] = 1e6, -1e6
    most = dict.fromkeys(made.names, 0)
    whole = made.tallies(model, X, y)
    for k in range(60):
        if relation == "add_remove":
            other = made.tallies(model, np.delete(X, k, axis=0), np.delete(y, k))
        else:
            X2, y2 = X.copy(), y.copy()
            X2[k], y2[k] = -X[k - 1], y[k - 1]
            other = made.tallies(model, X2, y2)
        for name in made.names:
            most[name] = max(most[name], int(np.abs(whole[name] - other[name]).sum()))
    for name in made.names:
        assert most[name] <= made.mechanisms[name].sensitivity, name
    for name in {"accuracy", "auc", "loss"} & set(made.names):
        assert most[name] == made.mechanisms[name].sensitivity, name


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("case", CASES)
def test_all_metrics_together_cost_the_stage_s_epsilon(case: str, relation: str) -> None:
    made = CASES[case][0]
    made = MetricsMaker(made.n_classes, made.hinge, 0.3, relation, made.target_width)
    assert accounting.epsilon(made.event, 0.0, neighboring_relation=relation) == pytest.approx(0.3, rel=1e-12)
    for mechanism in made.mechanisms.values():  # the noise of each is what its part of ε asks for, relation included
        assert mechanism.scale == pytest.approx(mechanism.sensitivity / mechanism.event.epsilon, rel=1e-9)
        assert mechanism.sensitivity % 2 == 0 or relation == "add_remove"


def test_metrics_use_the_noisy_count(tmp_path: Path) -> None:
    checks.check_metrics_use_the_noisy_count(tmp_path)


# -- intervals --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("scale", "number"), [(1.0, 16), (13.3, 16), (200.0, 4), (0.2, 16)])
def test_partial_sums_stay_within_their_bound(scale: float, number: int) -> None:
    """20,000 draws at beta = 0.05: more than 1228 misses have P < 1e-6 even if the bound were met exactly.

    A bound for the last sum of one cell (number = 1) misses far more often where there are several: the check sees it.
    """
    a = math.exp(-1 / scale)
    rng = np.random.default_rng(1)
    draws = rng.geometric(1 - a, (20_000, number)) - rng.geometric(1 - a, (20_000, number))  # discrete Laplace
    largest = np.abs(np.cumsum(draws, axis=1)).max(axis=1)
    limit = int(stats.binom.isf(1e-6, 20_000, 0.05))
    assert (largest > partial_sum_bound(scale, number, 0.05)).sum() <= limit
    if scale >= 1 and number == 16:
        assert (largest > partial_sum_bound(scale, 1, 0.05)).sum() > limit


@pytest.mark.parametrize(("epsilon", "n"), [(0.3, 300), (5.0, 300), (100.0, 40)])
def test_intervals_hold_for_noise_and_sampling_together(epsilon: float, n: int) -> None:
    """200 hold-outs from a known population: each metric's interval misses its population value in at most 27 of them.

    P(Binomial(200, 0.05) > 27) < 1e-6.  Without the sampling part they would miss most of the time at ε = 100, without
    the noise's part at ε = 0.1 (test below).
    """
    misses = _misses(epsilon, n)
    assert stats.binom.sf(27, 200, 0.05) < 1e-6
    assert all(count <= 27 for count in misses.values()), misses


def test_intervals_without_one_of_the_two_parts_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from dpml.mechanisms import DiscreteLaplaceMechanism
    from dpml.stages import metrics

    with monkeypatch.context() as patch:
        patch.setattr(DiscreteLaplaceMechanism, "error", lambda self, beta: 0)
        assert _misses(0.3, 300)["accuracy"] > 27
        assert _misses(0.1, 300)["loss"] > 27
    with monkeypatch.context() as patch:
        patch.setattr(metrics, "_beta_quantile", lambda a, b, p: min(max((a - (p < 0.5)) / (a + b - 1), 0), 1))
        patch.setattr(metrics.math, "sqrt", lambda x: 0.0)
        found = _misses(100.0, 40)
    assert found["accuracy"] > 27
    assert found["auc"] > 27


def _misses(epsilon: float, n: int) -> dict[str, int]:
    """In how many of 200 runs each interval misses the population value."""
    made, model, noise = maker(epsilon=epsilon), linear_model(), FixedNoise(int(10 * epsilon))
    truth = _truth()
    misses = dict.fromkeys(truth, 0)
    for seed in range(200):
        found = made.release(model, *_population(n, seed), noise)
        for name, value in truth.items():
            misses[name] += not found[name]["low"] <= value <= found[name]["high"]
    return misses


@functools.cache
def _truth() -> dict[str, float]:
    """Population values, from 200,000 draws (an accuracy to 0.001)."""
    made, n = maker(), 200_000
    big = made.tallies(linear_model(), *_population(n, 12345))
    loss = made.loss_bound * (0.5 + big["loss"][0] / STEPS / n)
    auc = area(*(np.cumsum(row) / row.sum() for row in big["auc"].reshape(2, CELLS)))
    return {"accuracy": big["accuracy"][0] / n, "loss": loss, "auc": auc}


def _population(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2)) / 4
    return X, (X[:, 0] + rng.normal(size=n) / 4 > 0).astype(np.int64)


def test_intervals_shrink_with_the_budget_and_the_hold_out() -> None:
    def width(epsilon: float, n: int, name: str) -> float:
        found = maker(epsilon=epsilon).release(linear_model(), *_population(n, 3), FixedNoise(1))[name]
        return float(found["high"] - found["low"])

    for name in ("accuracy", "loss", "auc"):
        assert width(2.0, 20_000, name) < width(0.2, 2_000, name)
        assert width(2.0, 20_000, name) < 0.12


def test_noise_larger_than_the_hold_out_says_nothing() -> None:
    found = maker(epsilon=0.01).release(linear_model(), *_population(20, 3), FixedNoise(1))
    assert (found["auc"]["low"], found["auc"]["high"]) == (0.0, 1.0)
    assert found["accuracy"]["high"] - found["accuracy"]["low"] > 0.9
    for name in ("accuracy", "loss", "auc"):
        assert found[name]["low"] <= found[name]["value"] <= found[name]["high"]


# -- runs -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("case", CASES)
def test_every_kind_of_model_gets_its_metrics(case: str) -> None:
    X, y = targets_of(case, 400)
    settings: dict[str, Any] = {"classes": sorted(set(y.tolist()))}
    if case == "regression":
        y, settings = 20.0 + 10.0 * y, {"target_bounds": (10.0, 30.0)}
    data = PrivateData.from_arrays(X, y, X_test=X, y_test=y, norm_bound=1.0, n_declared=400, **settings)
    name = {"three classes": "softmax", "margins": "linear_svm", "regression": "ridge"}.get(case, "logreg")
    settings = {"epsilon": 3.0, "delta": 1e-4, "shares": {"metrics": 0.3}, "noise_source": FixedNoise(2)}
    result = PrivateTrainer(name, "auto", **settings).fit(data)
    wanted = {"two classes": {"accuracy", "loss", "auc"}, "three classes": {"accuracy", "loss"},
              "margins": {"accuracy", "loss", "auc"}, "regression": {"mae"}}[case]  # fmt: skip
    assert {key for key in result.metrics if f"{key}_low" in result.metrics} == wanted
    assert result.metrics["how"] == "charged noise"
    predicted = result.model.predict(X)
    truth = {"accuracy": (predicted == y).mean(), "mae": np.abs(predicted - y).mean()}
    for key in wanted & set(truth):
        assert result.metrics[f"{key}_low"] <= truth[key] <= result.metrics[f"{key}_high"]
    assert 2.9 < result.guarantee.epsilon <= 3.0


@pytest.mark.parametrize("case", ["two classes", "three classes", "margins", "regression"])
def test_a_record_s_part_does_not_depend_on_the_others(case: str) -> None:
    """The tallies of all records are the sums of the tallies of each alone, in any order, dense or sparse."""
    made, model = CASES[case]
    X, y = targets_of(case, 300)
    whole = made.tallies(model, X, y)
    order = np.random.default_rng(1).permutation(300)
    for other in (made.tallies(model, X[order], y[order]), made.tallies(model, sparse.csr_array(X), y)):
        assert all((other[name] == whole[name]).all() for name in made.names)
    alone = [made.tallies(model, X[k : k + 1], y[k : k + 1]) for k in range(300)]
    for name in made.names:
        assert (sum(one[name] for one in alone) == whole[name]).all()


def test_scores_are_those_of_the_released_model() -> None:
    """Predictions, log losses and hinge losses of scalar arithmetic against the model's own and scikit-learn's."""
    X, y = targets_of("three classes", 200)
    weight = np.array([[4.0, 0.0], [0.0, 3.0], [-2.0, -2.0]])
    for kind in ("softmax", "logreg", "linear_svm"):
        model = PrivateModel(kind, {"weight": weight}, (0, 1, 2), {})
        scores = [
            class_score(values, label, 3, kind) for values, label in zip(decisions(model, X), y.tolist(), strict=True)
        ]
        assert [score.right for score in scores] == (model.predictions(X) == y).tolist()
        found = np.array([score.loss for score in scores])
        if kind == "linear_svm":
            signs = 2.0 * (y[:, None] == np.arange(3)) - 1
            wanted = np.maximum(0, 1 - signs * (X @ weight.T)).sum(axis=1)
        else:
            wanted = -np.log(np.maximum(model.probabilities(X)[np.arange(200), y], 1e-300))
        near = wanted < 500
        np.testing.assert_allclose(found[near], wanted[near], rtol=1e-9, atol=1e-9)
        assert (found[~near] > 400).all()
    two = PrivateModel("softmax", {"weight": np.array([[0.0, 0.0], [6.0, 0.0]])}, (0, 1), {})
    assert [class_score(v, 1, 2, "softmax") for v in decisions(two, X)] == [
        class_score(v, 1, 2, "logreg") for v in decisions(linear_model(), X)
    ]
    for huge in (1e308, -1e308, 800.0, -800.0, 0.0):
        score = class_score([huge], 1, 2, "logreg")
        assert 0.0 <= score.probability <= 1.0
        assert score.loss == pytest.approx(max(0.0, -huge), abs=0.7)


def test_records_without_a_score_are_wrong_and_stop_nothing() -> None:
    """A module of the user's own that raises, or gives NaN, at one record: that record alone is the worst."""
    import torch

    class Picky(torch.nn.Module):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            if (rows > 50).any():
                raise ValueError("too large")
            return torch.where(rows[:, 0] < -50, torch.nan, 6 * rows[:, 0])

    model = PrivateModel("module", {}, (0, 1), {}, module=Picky())
    X, y = rows_of(40)
    clean = maker().tallies(model, X, y)
    assert all((clean[name] == maker().tallies(linear_model(), X, y)[name]).all() for name in ("accuracy", "auc"))
    for bad in (99.0, -99.0):
        more = maker().tallies(model, np.vstack([X, [bad, 0.0]]), np.append(y, 1))
        assert (more["accuracy"] - clean["accuracy"]).tolist() == [0, 1]
        assert (more["loss"] - clean["loss"]).tolist() == [STEPS // 2]
        assert np.flatnonzero(more["auc"] - clean["auc"]).tolist() == [CELLS]
    assert class_score([1.0, 2.0, 3.0], 1, 2, "module").loss == math.inf


def test_metrics_of_a_loss_of_one_s_own_need_scores_of_the_classes() -> None:
    import torch

    X, y = rows_of(60)
    data = PrivateData.from_arrays(X, y, X_test=X, y_test=y, norm_bound=1.0, classes=[0, 1], n_declared=60)

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return ((outputs.sum(dim=1) - targets) ** 2).clamp(max=4.0)

    settings: dict[str, Any] = {"loss": loss, "steps": 2, "expected_batch_size": 20, "epsilon": 2.0, "delta": 1e-3}
    with pytest.raises(ModelError, match="for 2 declared classes it must give"):
        PrivateTrainer(torch.nn.Linear(2, 5), shares={"metrics": 0.1}, **settings).plan(data)
    result = PrivateTrainer(torch.nn.Linear(2, 2), shares={"metrics": 0.1}, **settings).fit(data)
    assert "accuracy" in result.metrics
    numbers = PrivateData.from_arrays(
        X, y / 2, X_test=X, y_test=y / 2, norm_bound=1.0, target_bounds=(0, 1), n_declared=60
    )
    with pytest.raises(ConfigError, match="the regression of a module with a loss of its own"):
        PrivateTrainer(torch.nn.Linear(2, 5), shares={"metrics": 0.1}, **settings).plan(numbers)


def test_a_network_gets_its_metrics_after_dp_sgd() -> None:
    X, y = rows_of(300)
    data = PrivateData.from_arrays(X, y, X_test=X, y_test=y, norm_bound=1.0, classes=[0, 1], n_declared=300)
    trainer = PrivateTrainer("mlp", "dp_sgd", hidden=(4,), steps=3, expected_batch_size=30, epsilon=3.0,
                             shares={"metrics": 0.2, "labels": 0.1})  # fmt: skip
    result = trainer.fit(data)
    assert result.metrics["accuracy_low"] <= result.metrics["accuracy"] <= result.metrics["accuracy_high"]
    assert list(result.stages) == ["labels", "metrics"]


def test_a_coin_of_its_own_sends_each_record_to_the_hold_out(tmp_path: Path) -> None:
    """One record more leaves every other one where it was: no permutation."""
    frame = checks.people(200)
    parts = []
    for k, table in enumerate((frame.iloc[:-1], frame)):
        cells = checks.open_table(tmp_path / str(k), table, test_fraction=0.3).cells(FixedNoise(6))
        parts.append((cells.train["age"].tolist(), cells.held_out["age"].tolist()))
        assert repr(cells) == "Cells(private)"
    for before, after in zip(*parts, strict=True):
        assert before == after or before == after[:-1]


class RaisesAt(torch.nn.Module):
    """A module that fails at one kind of record."""

    error: type[BaseException] = ValueError

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x[:, 2] > 0.9995).any()):
            raise self.error(f"boom {x}")
        return self.linear(x)


@pytest.mark.parametrize("error", [ValueError, MemoryError, SystemExit])
@pytest.mark.parametrize("shares", [None, {"metrics": 0.2}])
def test_a_private_test_record_at_which_a_module_raises_stops_nothing(error, shares, tmp_path, monkeypatch):
    """Neither before nor after the release: only the custodian's notes say that it failed."""
    monkeypatch.setattr(RaisesAt, "error", error)
    rng = np.random.default_rng(0)
    X, test = rng.normal(size=(60, 3)) * 0.3, rng.normal(size=(20, 3)) * 0.3
    names = []
    for number, more in enumerate(([], [[0.0, 0.0, 1.0]])):
        X_test = np.vstack([*more, test])
        data = PrivateData.from_arrays(
            X, X[:, 0] > 0, norm_bound=1.0, classes=[False, True], n_declared=60, X_test=X_test, y_test=X_test[:, 0] > 0
        )
        run = tmp_path / str(number)
        PrivateTrainer(
            RaisesAt(), method="dp_sgd", epsilon=3.0, delta=1e-4, shares=shares, steps=2, expected_batch_size=20,
            noise_source=FixedNoise(3), run_dir=run,
        ).fit(data)  # fmt: skip
        names.append(sorted(path.name for path in (run / "release").iterdir()))
    assert names[0] == names[1]
    notes = json.loads((run / "private" / "diagnostics.json").read_text())
    assert error.__name__ in notes["test"]["failed"]


class Remembers(torch.nn.Module):
    """Keeps the largest entry that it has ever seen in a buffer, also in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)
        self.register_buffer("largest", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.largest.copy_(torch.maximum(self.largest, x.abs().max()))
        return self.linear(x) * 0 + x - self.largest / 2


def test_what_a_forward_pass_leaves_in_a_buffer_does_not_reach_the_next_record():
    class Holder:
        kind, classes = "module", (0, 1)

        def __init__(self) -> None:
            self.network = Remembers()

        def _network(self) -> torch.nn.Module:
            return self.network

    rows = np.ones((5, 1))
    alone = list(decisions(Holder(), rows))
    beside = list(decisions(Holder(), np.vstack([[[1000.0]], rows])))[1:]
    assert alone == beside
