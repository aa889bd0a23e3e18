"""``PrivateSearch``: one budget for candidates and choice, what is released, what is refused, what stays secret."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import search_checks as checks
from scipy import stats
from search_checks import GRID, OUTPUT, make, small, unread
from sklearn.base import clone
from small_tables import people, write_people

import dpml
from dpml import PrivateData, PrivateTrainer, accounting, search
from dpml.accounting import (
    Composed,
    Gaussian,
    Laplace,
    ObjectivePerturbation,
    PoissonSampled,
    RepeatAndSelect,
    SelfComposed,
)
from dpml.errors import BudgetExceededError, ConfigError, LedgerError, ModelError, UnsupportedEventError
from dpml.mechanisms import FixedNoise
from dpml.search import PrivateSearch
from dpml.search_plan import common_event, inverse_gamma
from dpml.verify import main as verify

BOTH = pytest.mark.parametrize("mechanism", ["repeat", "exponential"])
RELATIONS = pytest.mark.parametrize("relation", ["add_remove", "replace_one"])


# -- the budget -------------------------------------------------------------------------------------------------------
def test_repeat_is_within_the_budget() -> None:
    checks.check_repeat_is_within_the_budget()


def test_exponential_is_within_the_budget() -> None:
    checks.check_exponential_is_within_the_budget()


@BOTH
@RELATIONS
def test_the_whole_search_is_one_charge_that_verifies(mechanism: str, relation: str, tmp_path: Path) -> None:
    found = make(mechanism=mechanism, neighboring_relation=relation, run_dir=tmp_path / "run").fit(small())
    record = accounting.read_ledger(tmp_path / "run/release/ledger.jsonl")
    assert len(record.charges) == 1
    cost = accounting.epsilon(record.event, 1e-5, neighboring_relation=relation)
    assert found.guarantee_.epsilon == pytest.approx(cost, rel=1e-9)
    assert 1.9 < cost <= 2.0
    assert found.guarantee_.neighboring_relation == relation
    outcome = accounting.verify(tmp_path / "run")
    assert outcome.ok, outcome.problems
    assert verify([str(tmp_path / "run")]) == 0


def test_the_charge_is_on_disk_before_the_data_are_read(tmp_path: Path) -> None:
    checks.check_everything_is_charged_before_the_data_are_read(tmp_path)


def test_a_search_over_dp_sgd_and_output_charges_both() -> None:
    plan = PrivateSearch(
        [{"method": "dp_sgd", "steps": 5, "expected_batch_size": 50}, {"method": "output"}], epsilon=2.0, delta=1e-5
    ).plan(unread(small()))
    assert isinstance(plan.event, RepeatAndSelect)
    orders = np.array([1.5, 2.0, 4.0, 16.0, 64.0])
    whole = accounting.rdp(plan.base_event, orders)
    for event in plan.candidate_events:
        one = accounting.rdp(Composed((event, Gaussian(plan.score_noise_multiplier))), orders)
        assert np.all(one <= whole * (1 + 1e-12))
    assert accounting.epsilon(plan.event, 1e-5) <= 2.0


def test_objective_perturbation_can_be_searched_by_the_exponential_mechanism() -> None:
    found = PrivateSearch(
        {"solution_norm": [1.0, 15.0]}, {"method": "objective"}, epsilon=2.0, delta=1e-5, mechanism="exponential"
    ).fit(small())
    assert 1.9 < found.guarantee_.epsilon <= 2.0
    assert accounting.epsilon(found.plan_.event, 1e-5) <= 2.0


def test_a_small_budget_and_one_that_is_too_small() -> None:
    plan = make(epsilon=0.05).plan(unread(small()))
    assert accounting.epsilon(plan.event, 1e-5) <= 0.05
    assert plan.base_epsilon < 0.05
    with pytest.raises(UnsupportedEventError, match=r"mechanism = 'repeat' cannot be accounted.*output.*exact"):
        make(accountant="exact").plan(unread(small()))


def test_one_event_stands_for_all_candidates() -> None:
    """Every candidate's Rényi divergence is below that of the event that stands for a run, at every order tried."""
    rng = np.random.default_rng(0)
    orders = np.array([1.01, 1.3, 2.0, 3.0, 8.0, 32.0, 256.0])

    def one() -> Any:
        sampled = SelfComposed(PoissonSampled(float(rng.choice([0.01, 0.1])), Gaussian(rng.uniform(1, 3))), 10)
        objective = ObjectivePerturbation(rng.uniform(1, 9), rng.uniform(0.2, 9), float(rng.choice([1.0, 2.0])))
        parts = [sampled, objective, Gaussian(rng.uniform(1, 9)), Laplace(4.0), Gaussian(rng.uniform(1, 9))]
        return Composed(tuple(part for part in parts if rng.random() < 0.6) or (Gaussian(2.0),))

    for _ in range(60):
        events = [one() for _ in range(int(rng.integers(1, 5)))]
        whole = accounting.rdp(common_event(events), orders)
        for event in events:
            assert np.all(accounting.rdp(event, orders) <= whole * (1 + 1e-12))
    same = [Gaussian(2.0), Gaussian(3.0), Gaussian(2.5)]
    assert common_event(same) == Composed((Gaussian(2.0),))
    less = SelfComposed(PoissonSampled(0.1, Gaussian(2.0)), 50)
    more = SelfComposed(PoissonSampled(0.1, Gaussian(2.0)), 90)
    assert common_event([less, more]) == Composed((more,))


# -- what is drawn ----------------------------------------------------------------------------------------------------
def test_runs_have_the_law_of_the_theorem() -> None:
    checks.check_law_of_the_runs()


@pytest.mark.parametrize(("mean", "shape"), [(1.01, 1.0), (5.0, 0.0), (60.0, 1.0), (1000.0, 0.0), (30.0, 10.0)])
def test_drawn_law_is_never_costlier_than_the_charged_one(mean: float, shape: float) -> None:
    """E K of the law that is drawn, in 50 digits, is at most the mean that is charged, and short of it by < 1e-5."""
    with mpmath.workdps(50):
        gamma, eta = mpmath.exp(-mpmath.mpf(inverse_gamma(mean, shape))), mpmath.mpf(shape)
        if shape == 0:
            got = (1 / gamma - 1) / mpmath.log(1 / gamma)
        else:
            got = eta * (1 - gamma) / (gamma * (1 - gamma**eta))
        assert mean * (1 - mpmath.mpf("1e-5")) <= got <= mean


def test_runs_come_from_the_secret_source() -> None:
    checks.check_runs_are_drawn_from_the_secret_source()


def test_candidates_are_drawn_with_replacement() -> None:
    checks.check_candidates_are_drawn_with_replacement()


def test_exponential_mechanism_has_its_weights() -> None:
    """χ² against e^{ε·u/(2Δ)} written out, false alarm 1e-6; a failed candidate is never drawn."""
    noise, scores = FixedNoise(3), [1.5, -0.5, 3.0, search.FAILED]
    drawn = [search.draw_by_weight(scores, 0.8, 0.5, noise) for _ in range(20_000)]
    weights = [math.exp(0.8 * score) for score in scores[:3]]
    expected = [len(drawn) * weight / sum(weights) for weight in weights]
    assert stats.chisquare([drawn.count(k) for k in range(3)], expected).pvalue > checks.ALARM
    assert 3 not in drawn
    assert search.draw_by_weight([1e6, -1e6], 1.0, 0.5, noise) == 0  # no overflow


def test_parts_are_disjoint_and_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    checks.check_parts_are_disjoint(monkeypatch)


def test_one_record_moves_no_other() -> None:
    more, fewer = small(400), small(399)
    split = [search.split_by_coins(d.load(FixedNoise(0)), 0.3, FixedNoise(7)) for d in (more, fewer)]
    parts = [[{row.tobytes() for row in part.X} for part in pair] for pair in split]
    for long, short in zip(*parts, strict=True):
        assert short <= long
        assert len(long) - len(short) <= 1
    held = len(split[0][1].y)
    assert stats.binomtest(held, 400, 0.3).pvalue > checks.ALARM


# -- what a record can tell -------------------------------------------------------------------------------------------
def test_the_choice_hides_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    checks.check_selection_hides_a_record(monkeypatch)


def test_noise_covers_one_record() -> None:
    checks.check_noise_covers_one_record()


def test_score_has_the_planned_noise() -> None:
    """Standard deviation of 4,000 noisy scores: χ², false alarm 1e-6."""
    plan = make().plan(unread(small()))
    noise = FixedNoise(4)
    drawn = np.array([search.noisy_score(10.0, plan, noise) for _ in range(4_000)])
    ratio = float(((drawn - 10.0) ** 2).sum()) / plan.score_noise_std**2
    assert stats.chi2.ppf(5e-7, 4_000) < ratio < stats.chi2.isf(5e-7, 4_000)


def test_score_is_normalised_by_a_public_size() -> None:
    checks.check_score_is_normalised_by_a_public_size()


@BOTH
def test_losers_and_the_number_of_runs_stay_private(mechanism: str, tmp_path: Path) -> None:
    found = make(mechanism=mechanism, run_dir=tmp_path / "run").fit(small())
    assert found.scores_ is None
    text = "".join(path.read_text("utf-8") for path in (tmp_path / "run/release").glob("*.json*"))
    assert '"n_runs"' not in text
    private = json.loads((tmp_path / "run/private/diagnostics.json").read_text("utf-8"))
    assert private["n_runs"] == len(private["runs"]) >= 1
    assert not hasattr(found, "n_runs_")
    assert (tmp_path / "run/private").stat().st_mode & 0o777 == 0o700


def test_plan_and_charge_do_not_depend_on_the_records(tmp_path: Path) -> None:
    """Other records, the same declared facts: config, schema and every ledger line but the last are equal."""
    files = []
    for k, n in enumerate((400, 317)):
        make(run_dir=tmp_path / str(k)).fit(small(n))
        release = tmp_path / str(k) / "release"
        lines = (release / "ledger.jsonl").read_text("utf-8").splitlines()
        files.append(((release / "config.yaml").read_text(), (release / "schema.json").read_text(), lines[:-1]))
        assert len(lines) == 3
    assert files[0] == files[1]


# -- the result -------------------------------------------------------------------------------------------------------
@BOTH
def test_result_says_that_the_selection_is_paid(mechanism: str, tmp_path: Path) -> None:
    found = make(mechanism=mechanism, run_dir=tmp_path / "run").fit(small())
    result = json.loads((tmp_path / "run/release/result.json").read_text("utf-8"))
    assert result["selection"]["paid"] is True
    assert result["selection"]["text"] == "selection paid for"
    assert result["selection"]["best_params"] == found.best_params_ == found.result_.plan.candidates[found.best_index_]
    assert any("selection paid for" in note for note in found.guarantee_.assumptions)
    assert result["assumptions"] == list(found.guarantee_.assumptions)
    assert "selection paid for" in str(found.plan_)
    assert found.n_candidates_ == 3
    assert result["metrics"] == {}
    model = dpml.load(tmp_path / "run")
    X, _ = checks.rows(10)
    assert np.array_equal(model.predict(X), found.best_model_.predict(X))


def test_the_report_of_a_search_can_be_written(tmp_path: Path) -> None:
    from dpml.report import write_run_report

    make(run_dir=tmp_path / "run").fit(small())
    write_run_report(tmp_path / "run")
    page = (tmp_path / "run/release/report.html").read_text("utf-8")
    assert "selection paid for" in page
    assert "repeat_and_select" in page


def test_test_noise_is_said(tmp_path: Path) -> None:
    found = make(run_dir=tmp_path / "run", noise_source=FixedNoise(0)).fit(small())
    assert any("NOT PRIVATE" in note for note in found.guarantee_.assumptions)
    assert not accounting.verify(tmp_path / "run").ok
    assert accounting.verify(tmp_path / "run", allow_test_noise=True).ok


@BOTH
def test_better_than_the_worst_candidate_at_the_whole_budget(mechanism: str) -> None:
    """Far too little regularisation drowns in noise; the search is 10 points better.  Repeatable noise."""
    data = PrivateData.synthetic(4_000, 5, n_test=2_000)
    grid = {"regularization": [1e-6, 1e-5, 1e-2]}
    worst = min(
        float(
            PrivateTrainer(**OUTPUT, regularization=value, epsilon=2.0, noise_source=FixedNoise(1))
            .fit(data)
            .metrics["accuracy"]
        )
        for value in grid["regularization"]
    )
    found = PrivateSearch(grid, OUTPUT, epsilon=2.0, mechanism=mechanism, noise_source=FixedNoise(0)).fit(data)
    assert float(found.result_.metrics["accuracy"]) > worst + 0.1
    assert found.scores_ is not None  # the data are declared public


def test_public_test_set_scores_without_noise() -> None:
    data = PrivateData.synthetic(2_000, 5, n_test=500)
    found = PrivateSearch(GRID, OUTPUT, epsilon=2.0, holdout="public_test").fit(data)
    assert found.plan_.score_noise_std == 0.0
    assert found.plan_.n_train == 2_000
    assert found.result_.score is None
    assert "used as well" in str(found.result_.metrics["source"])
    with pytest.raises(ConfigError, match="holdout = 'public_test'"):
        make(holdout="public_test").plan(unread(small()))


def test_a_table_and_pure_candidates(tmp_path: Path) -> None:
    """Sparse rows from a table; a pure candidate beside a Gaussian one; its own coin split beside the search's."""
    table, schema = write_people(tmp_path / "data")
    data = PrivateData.from_table(table, schema, test_fraction=0.2)
    found = make([{"variant": "pure"}, {}], run_dir=tmp_path / "run").fit(data)
    assert accounting.epsilon(found.plan_.event, 1e-5) <= 2.0
    assert found.plan_.n_train == round(0.8 * data.public.n_declared)
    assert accounting.verify(tmp_path / "run").ok
    model = dpml.load(tmp_path / "run/release")
    assert set(model.predict(people(20).drop(columns="label"))) <= {"no", "yes"}
    private = json.loads((tmp_path / "run/private/diagnostics.json").read_text("utf-8"))
    assert set(private["test"]) >= {"accuracy"}  # not declared public: for the custodian only
    assert found.result_.metrics == {}


def test_a_module_of_the_user_is_trained_afresh_in_every_run() -> None:
    import torch

    torch.manual_seed(0)
    network = torch.nn.Linear(4, 2)
    before = network.weight.detach().clone()
    found = PrivateSearch(
        {"learning_rate": [0.1, 1.0]},
        {"model": network, "method": "dp_sgd", "steps": 3, "expected_batch_size": 50},
        epsilon=2.0,
        delta=1e-5,
        mechanism="exponential",
    ).fit(small())
    assert torch.equal(network.weight.detach(), before)
    assert found.best_model_.kind == "module"
    assert found.plan_.to_dict()["parameters"]["candidates"] == [{"learning_rate": 0.1}, {"learning_rate": 1.0}]
    assert found.describe()["trainer"]["model"] == "Linear"


# -- edge cases -------------------------------------------------------------------------------------------------------
@BOTH
def test_one_candidate_is_one_run_at_the_whole_budget(mechanism: str) -> None:
    found = make([{}], mechanism=mechanism).fit(small())
    alone = PrivateTrainer(**OUTPUT, epsilon=2.0, delta=1e-5).plan(small())
    assert accounting.epsilon(found.plan_.event, 1e-5) == pytest.approx(accounting.epsilon(alone.event, 1e-5), rel=1e-6)
    assert found.plan_.n_train == 400
    assert found.result_.private["n_runs"] == 1
    assert found.result_.private["n_holdout"] == 0
    assert found.best_params_ == {}


def test_a_candidate_twice_is_charged_twice_or_drawn_twice_as_often() -> None:
    once = make([{}, {"seed": 1}], mechanism="exponential").plan(unread(small()))
    twice = make([{}, {}, {"seed": 1}], mechanism="exponential").plan(unread(small()))
    assert len(twice.candidate_events) == 3
    assert twice.base_epsilon < once.base_epsilon
    assert len(make([{}, {}, {"seed": 1}]).plan(unread(small())).candidates) == 3


def test_no_run_at_all_releases_a_failure(tmp_path: Path) -> None:
    """Poisson with mean 0.001: K = 0 but for one search in a thousand; the fixed noise draws K = 0."""
    found = make(distribution="poisson", mean_runs=1e-3, run_dir=tmp_path / "run", noise_source=FixedNoise(0))
    found.fit(small())
    assert found.result_.private["n_runs"] == 0
    assert found.best_model_ is None
    assert found.best_params_ is None
    assert found.result_.failure == "no run gave a model"
    result = json.loads((tmp_path / "run/release/result.json").read_text("utf-8"))
    assert result["selection"]["best_index"] is None
    assert result["epsilon"] > 0
    assert not (tmp_path / "run/release/model.safetensors").exists()
    assert accounting.verify(tmp_path / "run", allow_test_noise=True).ok


@BOTH
def test_a_run_without_finite_weights_loses(mechanism: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = PrivateTrainer.fit
    bad = [10.0, 0.1]

    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.regularization in bad:
            raise ModelError("not finite")
        return real(self, *args, **kwargs)

    monkeypatch.setattr(PrivateTrainer, "fit", fit)
    found = make(mechanism=mechanism, noise_source=FixedNoise(0)).fit(small())
    assert found.best_params_ == {"regularization": 1e-3}
    bad.append(1e-3)
    found = make(mechanism=mechanism, noise_source=FixedNoise(0)).fit(small())
    assert found.best_model_ is None


@BOTH
def test_few_records(mechanism: str) -> None:
    for n in (1, 2):
        found = make(mechanism=mechanism).fit(small(n))
        assert np.isfinite(found.best_model_.weights["weight"]).all()


def test_a_failing_read_leaves_the_charge(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="a record was read"):
        make(run_dir=tmp_path / "run").fit(unread(small()))
    assert len(accounting.read_ledger(tmp_path / "run/release/ledger.jsonl").charges) == 1
    assert not (tmp_path / "run/release/result.json").exists()


def test_data_set_ledger_counts_the_search_and_refuses_the_next(tmp_path: Path) -> None:
    cap = {"dataset_ledger": tmp_path / "cap.jsonl", "dataset_epsilon": 3.0, "dataset_delta": 1e-4}
    make(**cap).fit(small())
    with pytest.raises(BudgetExceededError):
        make(**cap).fit(unread(small()))


def test_a_candidate_that_uses_another_event_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LedgerError, match="not the planned one"):
        search._train(PrivateTrainer(**OUTPUT, epsilon=2.0, delta=1e-5), small(), Gaussian(1.0))


# -- what is refused, and how -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"candidates": []}, "candidates = \\[\\]"),
        ({"candidates": {}}, "candidates = {}"),
        ({"candidates": {"regularization": []}}, r"candidates\['regularization'\]"),
        ({"candidates": {"regularization": 0.1}}, r"candidates\['regularization'\]"),
        ({"candidates": [{"regularisation": 1.0}]}, r"candidates\[0\]: argument = 'regularisation'.*Did you mean"),
        ({"candidates": [{"epsilon": 1.0}]}, r"candidates\[0\]: epsilon = 1.0 is not allowed"),
        ({"candidates": [{"noise_multiplier": 1.0}]}, "noise_multiplier = 1.0 is not allowed"),
        ({"candidates": [{"run_dir": "x"}]}, "run_dir = 'x' is not allowed"),
        ({"candidates": [{"method": "nonprivate"}]}, "method = 'nonprivate'"),
        ({"candidates": [{}, {"regularization": -1.0}]}, "regularization = -1.0"),
        ({"candidates": [{}, {"steps": 5}]}, "steps = 5"),
        ({"candidates": "all"}, "candidates = 'all'"),
        ({"trainer": {"delta": 1e-6}}, "trainer: delta = 1e-06 is not allowed"),
        ({"trainer": 3}, "trainer = 3"),
        ({"epsilon": 0.0}, "epsilon = 0.0"),
        ({"epsilon": math.inf}, "epsilon = inf"),
        ({"delta": 0.5}, "delta = 0.5"),
        ({"neighboring_relation": "swap"}, "neighboring_relation = 'swap'"),
        ({"accountant": "clt"}, "accountant = 'clt'"),
        ({"mechanism": "best"}, "mechanism = 'best'"),
        ({"distribution": "binomial"}, "distribution = 'binomial'"),
        ({"shape": -0.5}, "shape = -0.5"),
        ({"shape": math.nan}, "shape = nan"),
        ({"mean_runs": 0.5}, "mean_runs = 0.5"),
        ({"mean_runs": 1e5}, "mean_runs = 100000.0"),
        ({"holdout": 0.0}, "holdout = 0.0"),
        ({"holdout": 1.0}, "holdout = 1.0"),
        ({"holdout": "test"}, "holdout = 'test'"),
        ({"score_share": 0.0}, "score_share = 0.0"),
        ({"selection_share": 0.2}, "selection_share = 0.2.*left out with mechanism='repeat'"),
        ({"mechanism": "exponential", "mean_runs": 5}, "mean_runs = 5.*left out with mechanism='exponential'"),
        ({"distribution": "poisson", "shape": 2.0}, "shape = 2.0.*left out"),
        ({"dataset_ledger": "x"}, "dataset_ledger = 'x' needs a cap"),
    ],
)
def test_refused_by_name_before_anything_is_read(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    arguments = {"candidates": GRID, "trainer": OUTPUT, "epsilon": 2.0, "delta": 1e-5, **changes}
    with pytest.raises(ConfigError, match=message):
        PrivateSearch(**arguments, run_dir=tmp_path / "run").fit(unread(small()))
    assert not (tmp_path / "run").exists()


def test_a_used_folder_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    make(run_dir=tmp_path / "run").fit(small())
    with pytest.raises(dpml.errors.RunFolderError, match="holds a run already"):
        make(run_dir=tmp_path / "run").fit(unread(small()))


def test_arguments_are_stored_as_they_are() -> None:
    grid = {"regularization": [1.0, 2.0]}
    found = PrivateSearch(grid, OUTPUT, epsilon=3.0, mean_runs=4)
    assert found.candidates is grid
    assert found.trainer is OUTPUT
    copied = clone(found)
    assert copied.get_params() == found.get_params()
    before = dict(found.get_params())
    found.fit(small(100, 400))
    assert found.get_params() == before
    assert grid == {"regularization": [1.0, 2.0]}


def test_progress_goes_to_the_custodian() -> None:
    seen: list[tuple[int, int, float]] = []
    found = make(mechanism="exponential").fit(small(), progress=lambda *a: seen.append(a))
    assert [a[:2] for a in seen] == [(1, 3), (2, 3), (3, 3)]
    assert {a[2] for a in seen} == {found.plan_.guarantee.epsilon}


@pytest.mark.parametrize("mechanism", ["repeat", "exponential"])
def test_linear_svm_is_scored_by_its_decisions(mechanism):
    """A model without probabilities can be searched over; on an easy task the winner is right on most test records."""
    search = PrivateSearch(
        {"solution_norm": [5.0, 15.0]},
        {"model": "linear_svm", "method": "output"},
        epsilon=50.0,
        delta=1e-5,
        mechanism=mechanism,
        holdout=0.2,
    ).fit(PrivateData.synthetic(n=3000, d=3))
    assert search.best_model_.kind == "linear_svm"
    assert search.result_.metrics["accuracy"] > 0.75


def test_the_ends_of_the_range_of_epsilon_are_named_as_given():
    data = small()
    plan = make(epsilon=1e4).plan(data)
    assert plan.base_epsilon <= 1e4
    with pytest.raises(ConfigError, match=r"epsilon = 2e-06 .*for a search"):
        make(epsilon=2e-6).plan(data)
