"""Checks of the private search that tests and planted bugs share; expected values from formulas written here."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

from dpml import PrivateData, accounting, search, search_plan
from dpml.accounting import Gaussian, read_ledger
from dpml.data import PublicInfo, Records
from dpml.mechanisms import FixedNoise, default_noise
from dpml.search import PrivateSearch
from dpml.search_plan import SearchPlan

ALARM = 1e-6
GRID = {"regularization": [1e-3, 0.1, 10.0]}
OUTPUT = {"method": "output"}


def rows(n: int = 400, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)) / 3
    return X, (X @ [3.0, -2.0, 1.0] + 0.3 * rng.normal(size=n) > 0).astype(int)


def small(n: int = 400, n_declared: int = 400, **more: Any) -> PrivateData:
    X, y = rows(n)
    return PrivateData.from_arrays(
        X, y, norm_bound=1.0, classes=[0, 1], n_declared=n_declared, add_constant=True, **more
    )


def make(candidates: Any = GRID, **changes: Any) -> PrivateSearch:
    return PrivateSearch(candidates, OUTPUT, **{"epsilon": 2.0, "delta": 1e-5, **changes})


def unread(data: PrivateData) -> PrivateData:
    """The same public knowledge, and records that must not be read."""

    def read(_: Any, sparse: bool = False) -> Records:
        raise AssertionError("a record was read")

    return PrivateData(data.public, read)


# -- what the theorems say, written down a second time ----------------------------------------------------------------
def rdp_to_epsilon(orders: np.ndarray, values: np.ndarray, delta: float) -> float:
    """Canonne, Kamath & Steinke 2020, Proposition 12."""
    return float(np.min(values + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)))


def repeated_gaussian(inverse_variance: float, mean: float, shape: float | None, delta: float) -> float:
    """ε of the best of K Gaussian runs, D_α = α·inverse_variance/2, on grids of its own (Theorems 2 and 6)."""
    orders = 1 + np.geomspace(0.05, 400, 4000)
    base = orders * inverse_variance / 2
    if shape is None:
        targets = np.log1p(1 / (orders - 1))
        mu = math.sqrt(inverse_variance)
        deltas = stats.norm.cdf(mu / 2 - targets / mu) - np.exp(targets) * stats.norm.cdf(-mu / 2 - targets / mu)
        return rdp_to_epsilon(orders, base + mean * deltas + math.log(mean) / (orders - 1), delta)
    log = inverse_gamma(mean, shape)
    other = np.min((1 - 1 / orders) * base + log / orders)
    return rdp_to_epsilon(orders, base + (1 + shape) * other + math.log(mean) / (orders - 1), delta)


def inverse_gamma(mean: float, shape: float) -> float:
    """ln(1/γ) by bisection of E K = η(1 − γ)/(γ(1 − γ^η))."""

    def mean_of(log: float) -> float:
        gamma = math.exp(-log)
        if shape == 0:
            return (1 / gamma - 1) / log
        return shape * (1 - gamma) / (gamma * (1 - gamma**shape))

    low, high = 1e-6, 50.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_of(middle) < mean else (low, middle)
    return high


def law(plan: SearchPlan, most: int) -> np.ndarray:
    """P(K = 0 … most) from scipy's own distributions."""
    k = np.arange(most + 1)
    if plan.shape is None:
        return np.asarray(stats.poisson.pmf(k, plan.mean_runs))
    gamma = math.exp(-inverse_gamma(plan.mean_runs, plan.shape))
    if plan.shape == 0:
        return np.where(k > 0, stats.logser.pmf(np.maximum(k, 1), 1 - gamma), 0.0)
    whole = stats.nbinom.pmf(k, plan.shape, gamma)
    return np.where(k > 0, whole, 0.0) / (1 - gamma**plan.shape)


def changed(plan: SearchPlan) -> int:
    return 1 if plan.guarantee.neighboring_relation == "add_remove" else 2


def strongest_gaussian(plan: SearchPlan) -> float:
    """1/σ² of the candidate with the least noise (all candidates here are output perturbations)."""
    found = []
    for event in plan.candidate_events:
        assert isinstance(event, Gaussian)
        found.append(event.noise_multiplier**-2)
    return max(found)


# -- checks -----------------------------------------------------------------------------------------------------------
def check_repeat_is_within_the_budget() -> None:
    """The noise of one run, by the theorems as written here, costs the whole budget and no more."""
    for relation in ("add_remove", "replace_one"):
        for changes in ({}, {"shape": 0.0, "mean_runs": 20}, {"distribution": "poisson"}):
            plan = make(neighboring_relation=relation, **changes).plan(unread(small()))
            precision = strongest_gaussian(plan) + plan.score_noise_multiplier**-2
            cost = repeated_gaussian(precision * changed(plan) ** 2, plan.mean_runs, plan.shape, 1e-5)
            least = 1.9 if plan.shape is not None else 1.5  # the accountant's δ̂ of one run comes from Rényi orders
            assert least <= cost <= 2.0 * 1.002, (relation, changes, cost)  # two grids of orders
            assert accounting.epsilon(plan.event, 1e-5, neighboring_relation=relation) <= 2.0


def check_exponential_is_within_the_budget() -> None:
    """Gaussians of all candidates and an ε_s-bounded-range choice cost the budget and no more.

    The extreme choices have two losses, t and t − ε_s, 0 ≤ t ≤ ε_s (Dong, Durfee & Rogers 2020): δ(2) is at most 1e-5
    for each of them.
    """
    for relation in ("add_remove", "replace_one"):
        plan = make(mechanism="exponential", neighboring_relation=relation).plan(unread(small()))
        precision = sum(event.noise_multiplier**-2 for event in plan.candidate_events)  # type: ignore[attr-defined]
        mu, pure = changed(plan) * math.sqrt(precision), 0.2  # a tenth of the budget goes to the selection
        assert plan.selection_epsilon == pytest.approx(pure)

        def gauss(e: float, mu: float = mu) -> float:
            return float(special.ndtr(mu / 2 - e / mu) - math.exp(e) * special.ndtr(-mu / 2 - e / mu))

        found = []
        for t in np.linspace(0, pure, 201):
            p = math.expm1(pure - t) / (math.exp(pure - t) - math.exp(-t))
            found.append(p * gauss(2.0 - t) + (1 - p) * gauss(2.0 - t + pure))
        assert 0.8e-5 <= max(found) <= 1.0001e-5, max(found)
        assert accounting.epsilon(plan.event, 1e-5, neighboring_relation=relation) <= 2.0


def check_runs_are_drawn_from_the_secret_source() -> None:
    """numpy's global generator neither decides K nor is touched; 40 equal draws in a row have p < 1e-20."""
    plan = make(mean_runs=20).plan(unread(small()))
    counts = []
    for _ in range(2):
        np.random.seed(0)  # noqa: NPY002
        before = str(np.random.get_state())  # noqa: NPY002
        counts.append([search.draw_count(plan, default_noise()) for _ in range(40)])
        assert str(np.random.get_state()) == before  # noqa: NPY002
    assert counts[0] != counts[1]


def check_law_of_the_runs() -> None:
    """K has the law of the theorem: χ² over 20,000 draws, false alarm 1e-6 each."""
    for k, changes in enumerate(
        ({}, {"shape": 0.0}, {"shape": 2.5, "mean_runs": 4}, {"distribution": "poisson", "mean_runs": 3})
    ):
        plan = make(**changes).plan(unread(small()))
        noise = FixedNoise(k)
        drawn = np.array([search.draw_count(plan, noise) for _ in range(20_000)])
        expected = law(plan, 400) * len(drawn)
        cut = int(np.flatnonzero(expected > 20)[-1])
        keep = [j for j in range(cut + 1) if expected[j] > 0]
        observed = [int((drawn == j).sum()) for j in keep] + [int((drawn > cut).sum())]
        wanted = np.append(expected[keep], len(drawn) - expected[keep].sum())
        assert sum(observed) == len(drawn)
        assert stats.chisquare(observed, wanted).pvalue > ALARM, changes


def check_candidates_are_drawn_with_replacement() -> None:
    """Consecutive draws are uniform over all pairs, equal ones included: χ², false alarm 1e-6."""
    noise = FixedNoise(5)
    pairs = [(search.draw_candidate(3, noise), search.draw_candidate(3, noise)) for _ in range(9_000)]
    observed = [pairs.count((a, b)) for a in range(3) for b in range(3)]
    assert sum(observed) == len(pairs)
    assert stats.chisquare(observed).pvalue > ALARM


def spy_on_parts(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[np.ndarray]]:
    """The rows that every run trains on and is scored on."""
    seen: dict[str, list[np.ndarray]] = {"train": [], "score": []}
    train, score = search._train, search.holdout_score

    def training(trainer: Any, part: PrivateData, planned: Any) -> Any:
        seen["train"].append(part.load(FixedNoise(0)).X)
        return train(trainer, part, planned)

    def scoring(model: Any, holdout: Records) -> float:
        seen["score"].append(holdout.X)
        return score(model, holdout)

    monkeypatch.setattr(search, "_train", training)
    monkeypatch.setattr(search, "holdout_score", scoring)
    return seen


def check_parts_are_disjoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every record is in exactly one part, the same one in all runs."""
    for mechanism in ("repeat", "exponential"):
        with monkeypatch.context() as patch:
            seen = spy_on_parts(patch)
            make(mechanism=mechanism, noise_source=FixedNoise(1)).fit(small())
        everything = {row.tobytes() for row in small().load(FixedNoise(0)).X}
        assert seen["train"]
        assert seen["score"]
        for train, held in zip(seen["train"], seen["score"], strict=True):
            a, b = ({row.tobytes() for row in part} for part in (train, held))
            assert not a & b
            assert a | b == everything
            assert len(train) + len(held) == 400
            assert np.array_equal(held, seen["score"][0])


def check_score_is_normalised_by_a_public_size() -> None:
    """The released score of half the declared records is far from the accuracy: it is divided by the declared size."""
    found = make(noise_source=FixedNoise(2), epsilon=20.0).fit(small(200, 400))
    result = found.result_
    winner = max(run["score"] for run in result.private["runs"])
    assert found.plan_.n_holdout == 80
    assert result.private["n_holdout"] != 80
    assert result.score == pytest.approx(0.5 + winner / 80, rel=1e-12)


class _Fixed:
    """A linear model that says the same class for every record whose one feature is positive."""

    kind, classes = "logreg", (0, 1)

    def __init__(self, label: int) -> None:
        self.weights = {"weight": np.array([[1.0 if label == 1 else -1.0]])}


TINY = PublicInfo("tiny", 100, 1, (0, 1), 1.0, False, False, False)


def winners(monkeypatch: pytest.MonkeyPatch, n: int, runs: int, mechanism: str, seed: int) -> np.ndarray:
    """Who wins on ``n`` (0 or 1) records of class 1, between "always 0" and "always 1", ``runs`` times."""
    records = Records(np.ones((n, 1)), np.ones(n, dtype=np.int64))
    data = PrivateData(TINY, lambda _, sparse=False: records)
    noise = FixedNoise(seed)
    found = make([{}, {"seed": 1}], epsilon=0.2, delta=1e-4, mechanism=mechanism, holdout=0.9, noise_source=noise)
    plan, candidates = found._prepare(data.public)
    with monkeypatch.context() as patch:
        patch.setattr(found, "_one", lambda arguments, *rest: SimpleNamespace(seed=arguments.get("seed", 0)))
        patch.setattr(search, "_train", lambda trainer, part, planned: _Fixed(trainer.seed))
        out = []
        for _ in range(runs):
            drawn, _ = found._runs(plan, candidates, data.public, records, noise, None)
            best = found._select(plan, drawn, noise)
            assert best is not None
            out.append(best.index)
    return np.array(out)


def check_selection_hides_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over 6,000 searches the winner tells less about one record than ε = 0.2: a bound that a false alarm passes with
    p < 1e-6 (Clopper & Pearson).  Without the score's noise the ratio is above e^0.4, found with certainty."""
    for mechanism in ("repeat", "exponential"):
        rates = []
        for n in (0, 1):
            won = winners(monkeypatch, n, 6_000, mechanism, seed=10 + n)
            rates.append((int(won.sum()), len(won)))
        (k0, m0), (k1, m1) = rates
        for (k, m), (j, i) in (((k1, m1), (k0, m0)), ((m0 - k0, m0), (m1 - k1, m1))):
            low = stats.beta.ppf(ALARM / 4, k, m - k + 1)
            high = stats.beta.ppf(1 - ALARM / 4, j + 1, i - j)
            assert low <= math.exp(0.2) * high + 1e-4, (mechanism, rates)


def check_noise_covers_one_record() -> None:
    """One record, right or wrong, moves the score by no more than noise and selection were planned for."""
    model: Any = _Fixed(1)
    X = np.ones((5, 1))
    base = search.holdout_score(model, Records(X, np.array([1, 0, 1, 1, 0])))
    less = [search.holdout_score(model, Records(X[:4], np.array(y))) for y in ([1, 0, 1, 1], [0, 1, 1, 0])]
    other = search.holdout_score(model, Records(X, np.array([1, 0, 1, 1, 1])))
    for relation, moved in (("add_remove", max(abs(base - one) for one in less)), ("replace_one", abs(base - other))):
        plan = make(neighboring_relation=relation).plan(unread(small()))
        effective = plan.score_noise_multiplier / (1 if relation == "add_remove" else 2)
        assert plan.score_noise_std >= moved * effective * (1 - 1e-12)
        assert search.selection_sensitivity(relation) >= moved


def check_everything_is_charged_before_the_data_are_read(folder: Any) -> None:
    """When records are read, the ledger on disk holds the whole search."""
    for mechanism in ("repeat", "exponential"):
        data = small()
        path = folder / mechanism / "release/ledger.jsonl"
        seen = []

        def read(
            noise: Any, sparse: bool = False, data: PrivateData = data, path: Any = path, seen: list = seen
        ) -> Any:
            seen.append(read_ledger(path).event)
            return data.load(noise, sparse=sparse)

        found = make(mechanism=mechanism, run_dir=folder / mechanism).fit(PrivateData(data.public, read))
        assert len(seen) == 1
        for event in (seen[0], found.plan_.event):
            cost = accounting.epsilon(event, 1e-5)
            assert cost == pytest.approx(found.guarantee_.epsilon, rel=1e-9)
            assert cost > 1.9


# -- one event for all candidates -------------------------------------------------------------------------------------
def sampled(rate: float, sigma: float, steps: int) -> accounting.Event:
    return accounting.SelfComposed(accounting.PoissonSampled(rate, Gaussian(sigma)), steps)


MIXED: dict[str, list[list[accounting.Event]]] = {
    "two noises of one candidate": [[sampled(0.1, 1.0, 100), sampled(0.1, 1.5, 100)]],
    "beside a stronger candidate": [[sampled(0.1, 1.0, 100), sampled(0.1, 1.5, 100)], [sampled(0.1, 0.9, 100)]],
    "two weak ones of one candidate": [[sampled(0.1, 1.0, 100)], [sampled(0.1, 1.2, 100), sampled(0.05, 1.1, 100)]],
    "a chain": [
        [sampled(0.1, 1.0, 60), sampled(0.08, 1.2, 60)],
        [sampled(0.08, 1.2, 100), sampled(0.05, 2.0, 60)],
        [sampled(0.05, 2.0, 120), sampled(0.02, 3.0, 60)],
    ],
}


def check_common_event_costs_as_much_as_each_candidate() -> None:
    """ε of the common event ≥ ε of what each candidate composes, by RDP and by PLD, under both relations."""
    for name, candidates in MIXED.items():
        events = [accounting.Composed(tuple(parts)) for parts in candidates]
        common = search_plan.common_event(events)
        for relation in ("add_remove", "replace_one"):
            for accountant in ("rdp", "best"):
                options = {"accountant": accountant, "neighboring_relation": relation}
                costs = [accounting.epsilon(event, 1e-5, **options) for event in events]
                assert accounting.epsilon(common, 1e-5, **options) >= max(costs) * (1 - 1e-6), (name, options)


def check_assumptions_of_the_candidates_are_the_searchs() -> None:
    """What trainer and candidates take for granted stands in the guarantee, and that it was not fixed beforehand."""
    note, other = "labels were read from y", "the bounds were looked up"
    candidates = [{"regularization": 0.1}, {"regularization": 1.0, "assumptions": [note, other]}]
    search = PrivateSearch(candidates, {**OUTPUT, "assumptions": [note]}, epsilon=2.0, delta=1e-5).fit(small())
    for guarantee in (search.guarantee_, search.plan_.guarantee):
        assert guarantee.assumptions.count(note) == guarantee.assumptions.count(other) == 1
        fixed = [text for text in guarantee.assumptions if "fixed without looking at the records" in text]
        assert len(fixed) == 1
        assert fixed[0].endswith("except for what follows")
    assert note in search.result_.to_dict()["assumptions"]
    plain = make().plan(small()).guarantee.assumptions
    assert not any("except for" in text for text in plain)
    assert sum("strongly convex objective" in text for text in plain) == 1  # what the candidates' own proofs rest on
