"""Trade-off functions, attack metrics and calibration to them, against the reference table and brute force."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from accounting_tables import close, inputs, rows
from hypothesis import given, settings
from hypothesis import strategies as st

from dpml import accounting as acc
from dpml.accounting import tradeoffs as t
from dpml.errors import AccountingError, ConfigError, UnsupportedEventError

GRID = np.unique(np.concatenate([[0.0], np.logspace(-6, 0, 61), np.linspace(0, 1, 61)]))
FEW = (0.0, 1e-4, 0.01, 0.1, 0.35, 0.8, 1.0)

TRADEOFFS: dict[str, Callable[[dict[str, float]], np.ndarray]] = {
    "randomized_response": lambda x: t.randomized_response_tradeoff(x["epsilon"], x["type1"]),
    "leaky_input": lambda x: t.leaky_input_tradeoff(x["delta"], x["type1"]),
    "leaky_randomized_response": lambda x: t.leaky_randomized_response_tradeoff(x["tau"], x["delta"], x["type1"]),
    "laplace": lambda x: t.laplace_tradeoff(x["epsilon"], x["type1"]),
    "gaussian": lambda x: t.gaussian_tradeoff(x["mu"], x["type1"]),
    "epsilon_delta": lambda x: t.epsilon_delta_tradeoff(x["epsilon"], x["delta"], x["type1"]),
}
PROFILES: dict[str, Callable[[dict[str, float]], np.ndarray]] = {
    "randomized_response": lambda x: t.randomized_response_profile(x["epsilon"], x["epsilon_prime"]),
    "leaky_input": lambda x: t.leaky_input_profile(x["delta"], x["epsilon_prime"]),
    "leaky_randomized_response": lambda x: t.leaky_randomized_response_profile(
        x["tau"], x["delta"], x["epsilon_prime"]
    ),
    "laplace": lambda x: t.laplace_profile(x["epsilon"], x["epsilon_prime"]),
    "gaussian": lambda x: t.gaussian_profile(x["mu"], x["epsilon_prime"]),
}
TABLE = [(f"tradeoff_{name}", function) for name, function in TRADEOFFS.items()]
TABLE += [(f"profile_{name}", function) for name, function in PROFILES.items()]


def test_the_table_has_no_other_rows() -> None:
    assert sum(len(rows("tradeoff", quantity)) for quantity, _ in TABLE) == 307


@pytest.mark.parametrize(("quantity", "function"), TABLE, ids=[name for name, _ in TABLE])
def test_closed_forms_give_every_row_of_the_table(quantity: str, function: Callable[[Any], np.ndarray]) -> None:
    wrong = [row["id"] for row in rows("tradeoff", quantity) if not close(row, float(function(inputs(row))))]
    assert not wrong


def events_of(row: dict[str, Any]) -> list[tuple[acc.Event, str]]:
    """Events (with relation) whose pair is the one of a table row."""
    kind, x = row["quantity"].removeprefix("tradeoff_"), inputs(row)
    if kind == "gaussian":
        whole, half = acc.Gaussian(1 / x["mu"]), acc.Gaussian(2 / x["mu"])
        return [(whole, "add_remove"), (half, "replace_one"), (acc.SelfComposed(half, 4), "add_remove")]
    if kind == "laplace":
        return [(acc.Laplace(1 / x["epsilon"]), "add_remove"), (acc.Laplace(2 / x["epsilon"]), "replace_one")]
    if kind == "randomized_response":
        return [(acc.Pure(x["epsilon"]), "add_remove"), (acc.EpsilonDelta(x["epsilon"], 0.0), "replace_one")]
    return [(acc.EpsilonDelta(x.get("epsilon", x.get("tau", 0.0)), x["delta"]), "add_remove")]


@pytest.mark.parametrize("kind", TRADEOFFS)
def test_events_with_a_closed_form_get_the_table_s_values_from_below(kind: str) -> None:
    for row in rows("tradeoff", f"tradeoff_{kind}"):
        for event, relation in events_of(row):
            got = float(t.tradeoff(event, inputs(row)["type1"], neighboring_relation=relation))
            assert close(row, got), (row["id"], event, got)
            assert got <= float(row["value"]) * (1 + 1e-15), (row["id"], event)


# ------------------------------------------------------------------------------- the generic way, by the profile


class Counted:
    """A profile that counts its calls and keeps the largest ε asked for."""

    def __init__(self, profile: Callable[[float], np.ndarray]) -> None:
        self.profile, self.calls = profile, 0

    def __call__(self, epsilon: float) -> float:
        self.calls += 1
        return float(self.profile(epsilon))


SMOOTH = [
    *((f"gaussian {mu}", lambda e, mu=mu: t.gaussian_profile(mu, e), lambda a, mu=mu: t.gaussian_tradeoff(mu, a))
      for mu in (1e-4, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 30.0)),
    *((f"laplace {x}", lambda e, x=x: t.laplace_profile(x, e), lambda a, x=x: t.laplace_tradeoff(x, a))
      for x in (0.01, 1.0, 10.0)),
    *((f"statement {x} {d}", lambda e, x=x, d=d: t.epsilon_delta_profile(x, d, e),
       lambda a, x=x, d=d: t.epsilon_delta_tradeoff(x, d, a))
      for x, d in ((0.0, 0.2), (0.1, 0.0), (1.0, 1e-5), (20.0, 1e-3))),
]  # fmt: skip


@pytest.mark.parametrize(("name", "profile", "truth"), SMOOTH, ids=[case[0] for case in SMOOTH])
def test_the_profile_gives_back_the_trade_off_function(name: str, profile: Callable, truth: Callable) -> None:
    delta_at = Counted(profile)
    curve = t.tradeoff_of_profile(delta_at, np.linspace(0, 1, 101))
    assert delta_at.calls <= t.MAX_EVALUATIONS
    gap = truth(np.linspace(0, 1, 101)) - curve
    assert gap.min() >= 0
    assert gap.max() < 2e-4
    dense = truth(GRID) - t.tradeoff_of_profile(profile_float(profile), GRID)
    assert dense.min() >= 0
    assert dense.max() < 1e-3
    for a in FEW:
        delta_at = Counted(profile)
        one = float(t.tradeoff_of_profile(delta_at, a))
        assert delta_at.calls <= 25
        assert 0 <= float(truth(a)) - one < 2e-5


def profile_float(profile: Callable) -> Callable[[float], float]:
    return lambda epsilon: float(profile(epsilon))


def test_a_known_pure_epsilon_is_used() -> None:
    f = t.tradeoff_of_profile(profile_float(lambda e: t.randomized_response_profile(1.0, e)), GRID, pure=1.0)
    np.testing.assert_allclose(f, t.randomized_response_tradeoff(1.0, GRID), atol=1e-10)


def test_gaussians_by_the_accountant_s_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole generic path, with the accountant's own δ(ε): the closed form is switched off."""
    monkeypatch.setattr(t, "_closed_form", lambda event, relation: None)
    a = np.linspace(0, 1, 101)
    for noise in (0.4, 1.0, 5.0):
        for relation, mu in (("add_remove", 1 / noise), ("replace_one", 2 / noise)):
            got = t.tradeoff(acc.Gaussian(noise), a, neighboring_relation=relation)
            truth = t.gaussian_tradeoff(mu, a)
            assert (got <= truth).all()
            assert (truth - got).max() < 1e-3


# --------------------------------------------------------------------------------------------------- brute force


def responses(epsilon: float, delta: float) -> tuple[np.ndarray, np.ndarray]:
    """Four outcomes of the leaky randomized response on both inputs."""
    keep = (1 - delta) * math.exp(epsilon) / (1 + math.exp(epsilon))
    flip = (1 - delta) - keep
    return np.array([delta, keep, flip, 0.0]), np.array([0.0, flip, keep, delta])


def together(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """All outcomes of independent pairs, one by one."""
    p = np.array([math.prod(choice) for choice in product(*(part[0] for part in parts))])
    q = np.array([math.prod(choice) for choice in product(*(part[1] for part in parts))])
    return p, q


def neyman_pearson(p: np.ndarray, q: np.ndarray, a: np.ndarray) -> np.ndarray:
    """Smallest type-II error by filling up outcomes by falling likelihood ratio: exact, piecewise linear in ``a``."""
    ratio = np.divide(p, q, out=np.full_like(p, np.inf), where=q > 0)
    order = np.argsort(-ratio, kind="stable")
    size = np.concatenate([[0.0], np.cumsum(q[order])])
    power = np.concatenate([[0.0], np.cumsum(p[order])])
    size, last = np.unique(size, return_index=True)
    best = np.maximum.reduceat(power, last)
    return 1 - np.interp(a, size, best)


COMPOSED = [
    [(1.0, 0.0)] * 3,
    [(0.3, 0.0)] * 8,
    [(0.5, 0.0), (1.0, 0.0), (0.2, 0.0)],
    [(0.4, 0.01)] * 4,
    [(1.0, 1e-3), (0.1, 0.0), (2.0, 1e-6)],
    [(3.0, 0.0)] * 2,
]


@pytest.mark.parametrize("parts", COMPOSED, ids=str)
def test_composed_randomized_response_against_the_best_test(parts: list[tuple[float, float]]) -> None:
    """Never above the truth; from the exact profile equal to it, from the accountant's within the slack of its grid."""
    event = acc.Composed(tuple(acc.EpsilonDelta(epsilon, delta) for epsilon, delta in parts))
    p, q = together([responses(*part) for part in parts])
    for a in (GRID, np.array([1e-3]), np.array([0.05]), np.array([0.3])):
        truth = neyman_pearson(p, q, a)
        exact = t.tradeoff_of_profile(lambda epsilon: float(np.maximum(p - math.exp(epsilon) * q, 0).sum()), a)
        assert (exact <= truth + 1e-14).all()
        assert (truth - exact).max() < 1e-5
        got = t.tradeoff(event, a)
        assert (got <= truth + 1e-14).all()
        assert (truth - got).max() < 3e-3


def test_the_metrics_of_composed_randomized_response_against_enumeration() -> None:
    parts = [(0.7, 0.0)] * 5
    event = acc.SelfComposed(acc.EpsilonDelta(0.7, 0.0), 5)
    p, q = together([responses(*part) for part in parts])
    for prior in (0.0, 0.1, 0.5, 0.8, 1.0):
        metrics = t.attack_metrics(event, prior=prior, delta=0.05, false_positive_rates=(0.01, 0.2))
        advantage = np.abs(p - q).sum() / 2
        assert advantage <= metrics.advantage < advantage + 1e-3
        accuracy = np.maximum(prior * p, (1 - prior) * q).sum()
        assert accuracy - 1e-15 <= metrics.accuracy < accuracy + 1e-3
        for rate, tpr in metrics.tpr_at_fpr.items():
            exact = 1 - float(neyman_pearson(p, q, np.array(rate)))
            assert exact <= tpr < exact + 1e-3
        seen = (p + q) > 0  # the four outcomes include two that never occur without a leak
        belief = np.divide(prior * p, prior * p + (1 - prior) * q, out=np.zeros_like(p), where=seen)
        for masses in (p, q):
            assert masses[belief > metrics.posterior_of_output + 1e-12].sum() <= 0.05
        assert metrics.posterior <= metrics.posterior_of_output + 1e-15


def test_the_plain_posterior_does_not_hold_for_the_output_itself() -> None:
    """Why there are two posteriors: outcomes with a loss above ε(δ) may have far more probability than δ."""
    p, q = together([responses(0.1, 0.0)])
    metrics = t.attack_metrics(acc.EpsilonDelta(0.1, 0.0), delta=0.02)
    belief = np.divide(p, p + q, out=np.zeros_like(p), where=p + q > 0)
    assert p[belief > metrics.posterior + 1e-12].sum() > 0.5
    assert p[belief > metrics.posterior_of_output + 1e-12].sum() == 0


def test_the_leaky_pair_reaches_the_posterior_and_leaks_with_probability_delta() -> None:
    epsilon, delta, prior = 1.2, 0.01, 0.3
    p, q = responses(epsilon, delta)
    metrics = t.attack_metrics(acc.EpsilonDelta(epsilon, delta), prior=prior, delta=delta)
    assert metrics.posterior == pytest.approx(prior * p[1] / (prior * p[1] + (1 - prior) * q[1]), rel=1e-9)
    assert metrics.posterior_of_output == 1.0  # (1.2, 0.01)-DP alone says nothing about losses at probability 0.01
    wider = t.attack_metrics(acc.EpsilonDelta(epsilon, delta), prior=prior, delta=2 * delta)
    assert metrics.posterior - 0.02 < wider.posterior_of_output < 1.0


def test_gaussian_metrics_by_their_definitions() -> None:
    from scipy import stats

    for mu in (0.3, 1.0, 3.0):
        metrics = t.attack_metrics(acc.Gaussian(1 / mu), prior=0.2, delta=1e-3)
        assert metrics.advantage == pytest.approx(2 * stats.norm.cdf(mu / 2) - 1, rel=1e-9)
        for rate, tpr in metrics.tpr_at_fpr.items():
            assert tpr == pytest.approx(stats.norm.sf(stats.norm.isf(rate) - mu), rel=1e-9)
        cut = mu / 2 - math.log(0.2 / 0.8) / mu  # decide "in" where 0.2 p(x) > 0.8 q(x)
        accuracy = 0.2 * stats.norm.sf(cut - mu) + 0.8 * stats.norm.cdf(cut)
        assert metrics.accuracy == pytest.approx(accuracy, rel=1e-9)
        # the loss under P is N(μ²/2, μ²): its exact upper 1e-3 quantile
        quantile = mu * mu / 2 + mu * stats.norm.isf(1e-3)
        assert t.posterior_of(quantile, 0.2) <= metrics.posterior_of_output
        assert metrics.posterior_of_output <= t.posterior_of(quantile + 1.5 * mu, 0.2)


# ------------------------------------------------------------------------------------------------------ properties

noises = st.floats(0.2, 50.0)
singles = st.one_of(
    st.builds(acc.Gaussian, noises),
    st.builds(acc.Laplace, noises),
    st.builds(acc.EpsilonDelta, st.floats(0.0, 3.0), st.floats(0.0, 0.3)),
    st.builds(acc.Pure, st.floats(0.0, 3.0)),
    st.builds(acc.ZCDP, st.floats(0.0, 1.0)),
)
relations = st.sampled_from(acc.RELATIONS)
LINE = np.linspace(0, 1, 41)


def check_shape(f: np.ndarray, a: np.ndarray) -> None:
    assert (f >= 0).all()
    assert (f <= 1 - a).all()
    assert (np.diff(f) <= 1e-12).all()
    slopes = np.diff(f) / np.diff(a)
    assert (np.diff(slopes) >= -1e-9).all()


@settings(max_examples=40, deadline=None)
@given(event=singles, relation=relations)
def test_trade_off_functions_are_convex_falling_and_below_guessing(event: acc.Event, relation: str) -> None:
    f = t.tradeoff(event, LINE, neighboring_relation=relation)
    check_shape(f, LINE)
    assert f[-1] == 0
    half = t.tradeoff(event, LINE[::2], neighboring_relation=relation)
    np.testing.assert_allclose(half, f[::2], atol=2e-3)  # a value hardly depends on what else was asked


@settings(max_examples=25, deadline=None)
@given(event=singles, other=singles, relation=relations)
def test_a_composition_is_easier_to_attack_than_a_part(event: acc.Event, other: acc.Event, relation: str) -> None:
    alone = t.tradeoff(event, LINE, neighboring_relation=relation)
    both = t.tradeoff(acc.Composed((event, other)), LINE, neighboring_relation=relation)
    check_shape(both, LINE)
    assert (both <= alone + 2e-3).all()  # both are lower bounds, each with its own slack


@settings(max_examples=50, deadline=None)
@given(epsilon=st.floats(0.0, 1e4), delta=st.floats(0.0, 1.0), mu=st.floats(0.0, 1e3))
def test_closed_forms_are_trade_off_functions(epsilon: float, delta: float, mu: float) -> None:
    for f in (
        t.epsilon_delta_tradeoff(epsilon, delta, LINE),
        t.laplace_tradeoff(epsilon, LINE),
        t.gaussian_tradeoff(mu, LINE),
    ):
        check_shape(np.minimum(f, 1 - LINE), LINE)
        np.testing.assert_array_less(f, 1 - LINE + 1e-12)


def test_profile_and_trade_off_are_dual() -> None:
    """δ(ε) = 1 − min over α of (f(α) + e^ε α), here for f and δ from different formulas."""
    a = np.concatenate([[0.0], np.logspace(-9, 0, 20_001)])
    epsilons = np.array([0.0, 0.3, 1.0, 2.5])
    for f, profile in (
        (t.gaussian_tradeoff(1.3, a), t.gaussian_profile(1.3, epsilons)),
        (t.laplace_tradeoff(2.0, a), t.laplace_profile(2.0, epsilons)),
        (t.epsilon_delta_tradeoff(1.0, 0.05, a), t.epsilon_delta_profile(1.0, 0.05, epsilons)),
    ):
        dual = [1 - np.min(f + math.exp(epsilon) * a) for epsilon in epsilons]
        np.testing.assert_allclose(dual, profile, atol=2e-4)


def test_the_event_s_profile_never_rises_and_keeps_its_shape() -> None:
    epsilons = np.array([[2.0, 0.0, 1.0], [0.5, 4.0, 1.0]])
    for event in (acc.Gaussian(1.0), acc.PoissonSampled(0.1, acc.Gaussian(1.0)), acc.ZCDP(0.3)):
        found = t.profile(event, epsilons)
        assert found.shape == (2, 3)
        order = np.argsort(epsilons, axis=None, kind="stable")
        assert (np.diff(found.ravel()[order]) <= 0).all()
        assert found[0, 2] == found[1, 2]
        assert (found <= [[acc.delta(event, float(x)) for x in row] for row in epsilons]).all()
    assert t.profile(acc.Gaussian(1.0), []).shape == (0,)
    np.testing.assert_allclose(t.profile(acc.Gaussian(0.5), 1.0), t.gaussian_profile(2.0, 1.0), rtol=1e-9)


def test_a_profile_that_wavers_cannot_raise_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(t, "_delta_of", lambda event, relation: lambda e: 0.3 if e in (0.0, 2.0) else 0.2)
    np.testing.assert_array_equal(t.profile(acc.Gaussian(1.0), [2.0, 1.0, 0.0]), [0.2, 0.2, 0.3])


# ------------------------------------------------------------------------------------------------ sampled Gaussian


def test_a_sampled_gaussian_against_its_own_likelihood_ratio() -> None:
    """(1 − q)·N(0, σ²) + q·N(1, σ²) against N(0, σ²), both orders: thresholds on x are the best tests."""
    from scipy import stats

    q, sigma = 0.3, 0.8
    x = np.linspace(-8, 9, 4001)
    null = stats.norm.sf(x, scale=sigma)
    mixed = (1 - q) * null + q * stats.norm.sf(x, loc=1, scale=sigma)
    a = np.linspace(0.001, 0.999, 99)
    there = np.interp(a, null[::-1], 1 - mixed[::-1])  # null: record out, reject for large x
    back = np.interp(a, 1 - mixed, null)  # null: record in, reject for small x
    f = t.tradeoff(acc.PoissonSampled(q, acc.Gaussian(sigma)), a)
    assert (f <= np.minimum(there, back) + 1e-5).all()  # the interpolation's own error
    # f is the largest symmetric convex function below both: compare with the conjugate of the larger profile
    grid = np.linspace(0.0, 8.0, 801)
    deltas = [max(np.max(mixed - math.exp(e) * null), np.max(1 - null - math.exp(e) * (1 - mixed))) for e in grid]
    best = np.max([np.maximum(1 - d - math.exp(e) * a, math.exp(-e) * (1 - d - a))
                   for e, d in zip(grid, deltas, strict=True)], axis=0)  # fmt: skip
    np.testing.assert_allclose(f, np.maximum(best, 0), atol=1e-3)


# ----------------------------------------------------------------------------------------------------- calibration

MAKERS: dict[str, Callable[[float], acc.Event]] = {
    "gaussian": acc.Gaussian,
    "laplace": acc.Laplace,
    "mixed": lambda noise: acc.Composed((acc.Gaussian(noise), acc.SelfComposed(acc.Laplace(2 * noise), 2))),
}


@pytest.mark.parametrize("relation", acc.RELATIONS)
@pytest.mark.parametrize("name", MAKERS)
def test_calibrated_noise_meets_its_target_and_less_does_not(name: str, relation: str) -> None:
    make = MAKERS[name]
    noise = t.calibrate_to_advantage(make, 0.1, neighboring_relation=relation)
    for factor, met in ((1.0, True), (1.01, True), (1 - 1e-3, False)):
        metrics = t.attack_metrics(make(noise * factor), neighboring_relation=relation)
        assert (metrics.advantage <= 0.1) is met, factor
    noise = t.calibrate_to_tpr(make, 0.05, 0.01, neighboring_relation=relation)
    for factor, met in ((1.0, True), (1.01, True), (1 - 1e-3, False)):
        tpr = 1 - float(t.tradeoff(make(noise * factor), 0.01, neighboring_relation=relation))
        assert (tpr <= 0.05) is met, factor


def test_calibration_against_closed_forms() -> None:
    from scipy import stats

    noise = t.calibrate_to_advantage(acc.Gaussian, 0.1)
    exact = 1 / (2 * stats.norm.isf(0.45))
    assert exact <= noise < exact * (1 + 1e-4)
    noise = t.calibrate_to_tpr(acc.Gaussian, 0.05, 0.01)
    exact = 1 / (stats.norm.isf(0.01) - stats.norm.isf(0.05))
    assert exact <= noise < exact * (1 + 1e-4)
    noise = t.calibrate_to_advantage(acc.Laplace, 0.2)  # 1 − e^{−ε/2} = 0.2
    exact = -1 / (2 * math.log(0.8))
    assert exact <= noise < exact * (1 + 1e-4)


def test_calibration_that_cannot_succeed_says_so() -> None:
    def make(noise: float) -> acc.Event:
        return acc.Composed((acc.Gaussian(noise), acc.EpsilonDelta(1.0, 0.0)))

    with pytest.raises(AccountingError, match=r"advantage of 0\.1"):
        t.calibrate_to_advantage(make, 0.1)
    with pytest.raises(AccountingError, match=r"true-positive rate of 0\.02 at the false-positive rate 0\.01"):
        t.calibrate_to_tpr(make, 0.02, 0.01)


def test_calibration_of_an_event_that_needs_no_noise() -> None:
    assert t.calibrate_to_advantage(lambda noise: acc.EpsilonDelta(0.1, 0.0), 0.5) < 2 * t.SMALLEST_NOISE


# ----------------------------------------------------------------------------------------------------------- edges


def test_extremes() -> None:
    a = np.array([0.0, 0.25, 1.0])
    np.testing.assert_array_equal(t.tradeoff(acc.NoOp(), a), 1 - a)
    np.testing.assert_array_equal(t.tradeoff(acc.SelfComposed(acc.Gaussian(1.0), 0), a), 1 - a)
    for event in (acc.NonPrivate(), acc.Gaussian(0.0), acc.Laplace(0.0), acc.EpsilonDelta(1.0, 1.0)):
        np.testing.assert_array_equal(t.tradeoff(event, a), 0.0)
    np.testing.assert_array_equal(t.tradeoff(acc.Composed((acc.NonPrivate(), acc.Laplace(1.0))), a), 0.0)
    for function in (t.gaussian_tradeoff, t.laplace_tradeoff, t.randomized_response_tradeoff):
        np.testing.assert_allclose(function(0.0, a), 1 - a, rtol=1e-15)
        np.testing.assert_array_equal(function(math.inf, a), 0.0)
        assert function(1.0, 0.25).shape == ()
        assert function(1.0, []).shape == (0,)
        assert function(1.0, np.ones((2, 3))).shape == (2, 3)
    for profile in (t.gaussian_profile, t.laplace_profile, t.randomized_response_profile):
        np.testing.assert_array_equal(profile(0.0, [0.0, 1.0]), 0.0)
        np.testing.assert_array_equal(profile(math.inf, [0.0, 1.0]), 1.0)
    assert float(t.epsilon_delta_tradeoff(5000.0, 0.0, 0.0)) == 1.0
    assert float(t.epsilon_delta_tradeoff(5000.0, 0.0, 5e-324)) == 0.0
    tiny = acc.Composed((acc.Pure(5e-324), acc.Pure(1e-300)))
    np.testing.assert_allclose(t.tradeoff(tiny, a), 1 - a, atol=1e-12)
    assert t.tradeoff(acc.Gaussian(1.0), []).shape == (0,)
    assert t.tradeoff(acc.SelfComposed(acc.Laplace(3.0), 2), []).shape == (0,)
    assert float(t.tradeoff(acc.SelfComposed(acc.Laplace(3.0), 2), 0.1)) > 0.4
    assert float(t.tradeoff(acc.SelfComposed(acc.EpsilonDelta(1.0, 0.01), 2), 0.0)) == pytest.approx(0.99**2, abs=1e-6)


def test_plain_functions_of_a_guarantee() -> None:
    for epsilon, delta in ((0.0, 0.0), (0.0, 0.3), (0.1, 1e-5), (1.0, 0.05), (8.0, 0.0)):
        p, q = responses(epsilon, delta)
        assert t.advantage_of(epsilon, delta) == pytest.approx(np.abs(p - q).sum() / 2, abs=1e-14)
        for fpr in (0.0, 1e-3, 0.2, 1.0):
            exact = 1 - float(neyman_pearson(p, q, np.array(fpr)))
            assert t.tpr_at_fpr(epsilon, delta, fpr) == pytest.approx(exact, abs=1e-14)
    assert t.advantage_of(math.inf, 0.0) == t.tpr_at_fpr(math.inf, 0.0, 0.1) == t.posterior_of(math.inf, 0.1) == 1.0
    assert t.posterior_of(math.log(3), 0.5) == pytest.approx(0.75, rel=1e-15)
    assert t.posterior_of(math.inf, 0.0) == 0.0


REFUSED: list[tuple[str, Callable[[], object]]] = [
    ("type1_errors", lambda: t.tradeoff(acc.Gaussian(1.0), [0.1, math.nan])),
    ("type1_errors", lambda: t.tradeoff(acc.Gaussian(1.0), -0.1)),
    ("type1_errors", lambda: t.tradeoff(acc.Gaussian(1.0), "0.1")),
    ("type1_errors", lambda: t.tradeoff(acc.Gaussian(1.0), [[0.1], [0.1, 0.2]])),
    ("neighboring_relation", lambda: t.tradeoff(acc.Gaussian(1.0), 0.1, neighboring_relation="other")),
    ("event", lambda: t.tradeoff("gaussian", 0.1)),  # type: ignore[arg-type]
    ("event", lambda: t.profile(None, 0.1)),  # type: ignore[arg-type]
    ("event", lambda: t.calibrate_to_advantage(lambda noise: None, 0.1)),  # type: ignore[arg-type, return-value]
    ("epsilons", lambda: t.profile(acc.Gaussian(1.0), [math.inf])),
    ("epsilons", lambda: t.gaussian_profile(1.0, [-1.0])),
    ("a", lambda: t.gaussian_tradeoff(1.0, 1.1)),
    ("mu", lambda: t.gaussian_tradeoff(-1.0, 0.1)),
    ("mu", lambda: t.gaussian_tradeoff(math.nan, 0.1)),
    ("epsilon", lambda: t.laplace_tradeoff(-math.inf, 0.1)),
    ("delta", lambda: t.epsilon_delta_tradeoff(1.0, 1.5, 0.1)),
    ("prior", lambda: t.attack_metrics(acc.Gaussian(1.0), prior=1.5)),
    ("delta", lambda: t.attack_metrics(acc.Gaussian(1.0), delta=1.0)),
    ("false_positive_rates", lambda: t.attack_metrics(acc.Gaussian(1.0), false_positive_rates=(2.0,))),
    ("fpr", lambda: t.tpr_at_fpr(1.0, 0.0, -0.1)),
    ("advantage", lambda: t.calibrate_to_advantage(acc.Gaussian, 0.0)),
    ("tpr", lambda: t.calibrate_to_tpr(acc.Gaussian, 0.01, 0.01)),
    ("fpr", lambda: t.calibrate_to_tpr(acc.Gaussian, 0.01, 0.0)),
]


@pytest.mark.parametrize(("name", "call"), REFUSED, ids=[f"{i}-{name}" for i, (name, _) in enumerate(REFUSED)])
def test_arguments_out_of_range_are_refused_by_name(name: str, call: Callable[[], object]) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} = "):
        call()


def test_an_event_without_a_guarantee_is_refused() -> None:
    with pytest.raises(UnsupportedEventError, match="randomized_response"):
        t.tradeoff(acc.RandomizedResponse(0.5, 2), 0.1, neighboring_relation="add_remove")


def test_metrics_take_one_rate_or_none_and_zero_delta() -> None:
    metrics = t.attack_metrics(acc.EpsilonDelta(1.0, 0.0), false_positive_rates=0.1, delta=0.0)
    assert list(metrics.tpr_at_fpr) == [0.1]
    assert metrics.posterior == metrics.posterior_of_output == pytest.approx(math.e / (1 + math.e))
    metrics = t.attack_metrics(acc.Gaussian(1.0), false_positive_rates=(), delta=0.0)
    assert metrics.tpr_at_fpr == {}
    assert metrics.posterior == metrics.posterior_of_output == 1.0
