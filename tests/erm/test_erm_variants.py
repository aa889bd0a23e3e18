"""Pure and published calibrations, norm-gamma noise, other losses, several classes: against tables and definitions."""

import json
import math
from pathlib import Path

import erm_checks as checks
import mpmath
import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

from dpml import accounting, erm, errors
from dpml.erm import objective, problems, published
from dpml.erm.losses import Logistic, SmoothedHinge
from dpml.mechanisms import FixedNoise, SecretNoise, add_norm_gamma, norm_gamma

TABLE = json.loads((Path(__file__).parents[1] / "reference" / "private_erm.json").read_text())


def table_rows(*quantities):
    found = [row for row in TABLE["rows"] if row["quantity"] in quantities]
    assert found
    return [
        pytest.param(
            {k: float(v) for k, v in r["inputs"].items()},
            float(r["value"]),
            r["quantity"],
            float(r["rtol"]),
            id=r["id"],
        )
        for r in found
    ]


@pytest.mark.parametrize(
    ("inputs", "value", "quantity", "rtol"),
    table_rows(
        "objective_cms_epsilon_prime",
        "objective_cms_noise_scale",
        "objective_cms_extra_regularisation",
        "objective_cms_norm_bound_noise_scale",
        "objective_cms_norm_bound_extra_regularisation",
    ),
)
def test_cms11_is_the_tables(inputs, value, quantity, rtol):
    """The table is in mean form: Δ there is per record, λ_sum = n λ."""
    n, radius = inputs["n"], inputs.get("feature_norm_bound", 1.0)
    reduced, extra, scale = published.cms11(
        inputs["epsilon"], n * inputs["lambda"], lipschitz=radius, smoothness=inputs["c"] * radius**2
    )
    got = scale if quantity.endswith("noise_scale") else extra / n if quantity.endswith("regularisation") else reduced
    assert got == pytest.approx(value, rel=rtol, abs=1e-14)


@pytest.mark.parametrize(
    ("inputs", "value", "quantity", "rtol"),
    table_rows(
        "objective_kst_sigma_add_remove", "objective_kst_sigma_replace_one", "objective_kst_min_delta_regularisation"
    ),
)
def test_kst12_is_the_tables(inputs, value, quantity, rtol):
    relation = "replace_one" if quantity.endswith("replace_one") else "add_remove"
    sigma, least = published.kst12(
        inputs["epsilon"], inputs["delta"], inputs["lipschitz"], inputs["smoothness"], relation
    )
    assert (least if quantity.endswith("regularisation") else sigma) == pytest.approx(value, rel=rtol)


@pytest.mark.parametrize(
    ("epsilon", "sigma", "lambda_sum"),
    [(0.1, 39.88, 12.63), (0.5, 9.122, 2.527), (1.0, 4.816, 1.327), (2.0, 2.556, 0.731), (8.0, 0.767, 0.298)],
)
def test_redberg23_has_the_published_rules_values(epsilon, sigma, lambda_sum):
    """Values computed for the paper's rule with its own c₀ elsewhere, to the digits given."""
    got_sigma, got_lambda = published.redberg23(epsilon, 1e-5, 1.0, 0.25)
    assert got_sigma == pytest.approx(sigma, rel=1e-3)
    assert got_lambda == pytest.approx(lambda_sum, rel=2e-3)


@pytest.mark.parametrize(
    ("inputs", "value", "quantity", "rtol"),
    table_rows("norm_gamma_scale", "norm_gamma_norm_sd", "norm_gamma_expected_norm", "norm_gamma_coordinate_variance"),
)
def test_norm_gamma_has_the_tables_moments(inputs, value, quantity, rtol):
    """Sample moments over many draws, within the two-sided 1e-6 interval of the sample mean (normal approximation with
    the exact variance of the statistic; 2,000 draws), except for the scale, which is exact."""
    d, scale = int(inputs["dimension"]), inputs["l2_sensitivity"] / inputs["epsilon"]
    if quantity == "norm_gamma_scale":
        assert scale == pytest.approx(value, rel=rtol)
        return
    draws = 2000 if d < 1000 else 200
    noise = FixedNoise(7)
    samples = np.stack([norm_gamma(d, scale=scale, noise=noise) for _ in range(draws)])
    norms = np.linalg.norm(samples, axis=1)
    law = stats.gamma(d, scale=scale)
    if quantity == "norm_gamma_expected_norm":
        assert law.mean() == pytest.approx(value, rel=rtol)
        assert abs(norms.mean() - value) < 5 * law.std() / math.sqrt(draws)
    elif quantity == "norm_gamma_norm_sd":
        assert law.std() == pytest.approx(value, rel=rtol)
        spread = math.sqrt((law.stats("k") + 2) / draws)  # relative sd of a sample variance
        assert abs(norms.var() / value**2 - 1) < 6 * spread
    else:
        assert (d + 1) * scale**2 == pytest.approx(value, rel=rtol)
        fourth = float(law.moment(4)) / law.moment(2) ** 2
        assert abs((norms**2).mean() / d / value - 1) < 6 * math.sqrt((fourth - 1) / draws)


@pytest.mark.parametrize(
    ("inputs", "value", "quantity", "rtol"), table_rows("norm_gamma_quantile", "norm_gamma_tail_bound")
)
def test_norm_gamma_exceeds_the_tables_quantile_as_often_as_it_should(inputs, value, quantity, rtol):
    """Count of norms beyond the exact (1−β)-quantile: binomial(β), two-sided 1e-6; beyond the bound: at most that."""
    d, scale, beta = (
        int(inputs["dimension"]),
        inputs["l2_sensitivity"] / inputs["epsilon"],
        inputs["failure_probability"],
    )
    draws = 1000 if d < 1000 else 100
    noise = FixedNoise(11)
    beyond = sum(np.linalg.norm(norm_gamma(d, scale=scale, noise=noise)) > value for _ in range(draws))
    law = stats.binom(draws, beta)
    assert beyond <= law.isf(5e-7)
    if quantity == "norm_gamma_quantile":
        assert beyond >= law.ppf(5e-7)


def test_norm_gammas_law_is_the_densitys():
    """Norm ~ Gamma(d, scale) and each coordinate of the direction symmetric: Kolmogorov-Smirnov at 1e-6 each."""
    noise, d = SecretNoise(), 3
    draws = np.stack([norm_gamma(d, scale=0.5, noise=noise) for _ in range(3000)])
    norms = np.linalg.norm(draws, axis=1)
    assert stats.kstest(norms, stats.gamma(d, scale=0.5).cdf).pvalue > 1e-6
    # in 3 dimensions a coordinate of a uniform direction is uniform on [-1, 1] (Archimedes)
    for j in range(d):
        assert stats.kstest(draws[:, j] / norms, stats.uniform(-1, 2).cdf).pvalue > 1e-6


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"sensitivity": -1.0, "epsilon": 1.0}, "sensitivity"),
        ({"sensitivity": math.inf, "epsilon": 1.0}, "sensitivity"),
        ({"sensitivity": 1.0, "epsilon": 0.0}, "epsilon"),
        ({"sensitivity": 1.0, "epsilon": math.nan}, "epsilon"),
    ],
)
def test_norm_gamma_refuses_bad_scales(arguments, name):
    with pytest.raises(errors.ConfigError, match=name):
        add_norm_gamma(np.zeros(3), noise=FixedNoise(0), **arguments)
    with pytest.raises(errors.DataError, match="NaN"):
        add_norm_gamma([math.nan], sensitivity=1.0, epsilon=1.0, noise=FixedNoise(0))


# ------------------------------------------------------------------------------------------------------------- plans

OBJECTIVE_PLANS = [
    {"loss": "smoothed_hinge"},
    {"loss": "smoothed_hinge", "loss_parameter": 0.1, "norm_bound": 2.0},
    {"loss": "huber", "loss_parameter": 0.3},
    {"n_classes": 3},
    {"n_classes": 10, "norm_bound": 0.5},
    {"variant": "kst12"},
    {"variant": "pure", "delta": 0.0},
    {"variant": "pure", "delta": 0.0, "loss": "huber"},
    {"variant": "pure", "delta": 0.0, "n_classes": 4},
]


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
@pytest.mark.parametrize("changes", OBJECTIVE_PLANS, ids=str)
@pytest.mark.parametrize("epsilon", [0.1, 2.0])
def test_every_plan_keeps_its_promise(changes, relation, epsilon):
    a_plan = checks.plan("objective", **{"epsilon": epsilon, "neighboring_relation": relation, **changes})
    got = accounting.epsilon(a_plan.event, a_plan.delta, neighboring_relation=relation)
    assert got <= epsilon * (1 + 1e-12)
    assert a_plan.lambda_sum > 0.0
    if a_plan.variant == "default":
        assert got >= 0.99 * epsilon  # nothing is wasted


@pytest.mark.parametrize(
    "changes", [{"variant": "cms11", "delta": 0.0, "neighboring_relation": "replace_one"}], ids=str
)
def test_cms11_plan_uses_the_published_noise(changes):
    a_plan = checks.plan("objective", **changes)
    epsilon = 0.995 * checks.EPSILON
    assert a_plan.noise_scale == pytest.approx(2.0 / (epsilon - 2 * math.log1p(0.25 / a_plan.lambda_sum)), rel=1e-12)
    assert a_plan.event == accounting.Composed((accounting.Pure(epsilon), accounting.Pure(0.005 * checks.EPSILON)))


@pytest.mark.parametrize(("relation", "changed"), [("add_remove", 1), ("replace_one", 2)])
@pytest.mark.parametrize("norm_bound", [0.5, 3.0])
def test_pure_noise_pays_the_sharp_jacobian(relation, changed, norm_bound):
    a_plan = checks.plan("objective", variant="pure", delta=0.0, neighboring_relation=relation, norm_bound=norm_bound)
    left = 0.995 * checks.EPSILON - math.log1p(norm_bound**2 / 4 / a_plan.lambda_sum)
    assert a_plan.noise_scale == pytest.approx(changed * norm_bound / left, rel=1e-12)


def test_default_needs_less_noise_than_anything_published():
    for epsilon in (0.1, 0.5, 1.0, 2.0):
        ours, redberg, kst = (
            checks.plan("objective", epsilon=epsilon, variant=v).noise_std for v in ("default", "redberg23", "kst12")
        )
        assert ours < 0.8 * redberg < 0.8 * 0.55 * kst


def test_one_against_the_rest_composes_instead_of_dividing_epsilon():
    """σ for K = 10 is below 10 times that of one problem, and below what ε/10 would need."""
    one = checks.plan("objective", loss="smoothed_hinge")
    ten = checks.plan("objective", loss="smoothed_hinge", n_classes=10)
    divided = checks.plan("objective", loss="smoothed_hinge", epsilon=0.1, delta=1e-6)
    assert one.noise_std * 2 < ten.noise_std < 0.6 * divided.noise_std


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"loss": "squared"}, "bounded over all θ"),
        ({"loss": "absolute"}, r"loss = 'absolute'.*logistic"),
        ({"loss": "huber", "n_classes": 3}, "n_classes = 3"),
        ({"loss": "smoothed_hinge", "loss_parameter": 0.0}, "loss_parameter = 0.0"),
        ({"loss": "logistic", "loss_parameter": 0.5}, "loss_parameter"),
        ({"variant": "best"}, "variant = 'best'"),
        ({"variant": "pure"}, "delta = 1e-05.*must be 0"),
        ({"delta": 0.0}, "variant='pure'"),
        ({"variant": "cms11", "delta": 0.0}, "neighboring_relation = 'add_remove'.*cms11"),
        ({"variant": "redberg23", "neighboring_relation": "replace_one"}, "redberg23"),
        ({"variant": "kst12", "regularization": 1e-9}, "regularization = 1e-09"),
        ({"variant": "redberg23", "regularization": 1e-9}, "regularization = 1e-09"),
        ({"n_classes": 1}, "n_classes = 1"),
    ],
)
def test_what_no_theorem_covers_is_refused_by_name(changes, match):
    with pytest.raises(errors.ConfigError, match=match):
        checks.plan("objective", **changes)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"loss": "squared"}, "bounded over all θ"),
        ({"noise": "laplace"}, "noise = 'laplace'"),
        ({"noise": "gamma"}, "delta"),
        ({"loss": "softmax", "loss_parameter": 1.0}, "loss_parameter"),
    ],
)
def test_output_refuses_by_name(changes, match):
    with pytest.raises(errors.ConfigError, match=match):
        checks.plan("output", **changes)


@pytest.mark.parametrize(("relation", "changed"), [("add_remove", 1), ("replace_one", 2)])
@pytest.mark.parametrize(
    ("changes", "reach"),
    [
        ({"loss": "smoothed_hinge"}, 3.0),
        ({"loss": "huber", "loss_parameter": 0.2}, 0.6),
        ({"n_classes": 5}, 3.0 * math.sqrt(5)),
        ({"loss": "softmax", "n_classes": 5}, 3.0 * math.sqrt(2)),
    ],
    ids=str,
)
def test_output_sensitivity_is_the_joint_gradients_reach(changes, reach, relation, changed):
    a_plan = checks.plan("output", norm_bound=3.0, neighboring_relation=relation, **changes)
    problem_slack = math.sqrt(5) if changes.get("n_classes") == 5 and changes.get("loss") != "softmax" else 1.0
    expected = (changed * reach + 2 * a_plan.tolerance * problem_slack) / a_plan.lambda_sum
    assert a_plan.sensitivity == pytest.approx(expected, rel=1e-12)
    assert a_plan.noise_std >= checks.UNIT_SIGMA * a_plan.sensitivity * (1 - 1e-9)


def check_gamma_noise_scale(n_classes=2):
    """Without records θ is the noise: ‖θ‖ ~ Gamma(D, Δ/ε); mean of 300 norms, two-sided 1e-6 (normal, 5 sd)."""
    d, loss = 40, "logistic"
    a_plan = checks.plan(
        "output", n_features=d, delta=0.0, noise="gamma", norm_bound=2.0, n_classes=n_classes, loss=loss
    )
    size = d * (n_classes if n_classes > 2 else 1)
    law = stats.gamma(size, scale=a_plan.sensitivity / checks.EPSILON)
    norms = [np.linalg.norm(checks.fit("output", a_plan, *checks.no_records(d))) for _ in range(300)]
    assert abs(np.mean(norms) - law.mean()) < 5 * law.std() / math.sqrt(300)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_gamma_noise_scale(n_classes):
    check_gamma_noise_scale(n_classes)


def test_planted_bug_gamma_with_one_dimension_too_few(monkeypatch):
    from dpml.erm import output

    check_gamma_noise_scale()

    def short(values, *, sensitivity, epsilon, noise):
        draw = add_norm_gamma(values, sensitivity=sensitivity, epsilon=epsilon, noise=noise) - values
        return values + draw * stats.beta(34, 6).rvs(random_state=int(1e6 * abs(draw[0])))

    monkeypatch.setattr(output, "add_norm_gamma", short)
    with pytest.raises(AssertionError):
        check_gamma_noise_scale()


# --------------------------------------------------------------------------------------------------------------- fits


def three_classes():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(600, 4))
    x /= np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))
    return x, (x[:, :3] @ np.eye(3)).argmax(axis=1)


@pytest.mark.parametrize("method", ["output", "objective"])
@pytest.mark.parametrize("loss", ["logistic", "smoothed_hinge"])
def test_several_classes_are_one_problem_each(method, loss):
    x, y = three_classes()
    a_plan = checks.plan(method, n_classes=3, loss=loss, regularization=1e-2)
    theta = checks.fit(method, a_plan, x, y, noise=checks.ZeroNoise())
    assert theta.shape == (3, 4)
    kind = Logistic() if loss == "logistic" else SmoothedHinge()
    for k in range(3):
        signs = np.where(y == k, 1.0, -1.0)
        gradient = a_plan.lambda_sum * theta[k] + x.T @ kind.slope(x @ theta[k], signs)
        assert np.linalg.norm(gradient) <= a_plan.tolerance
    assert ((x @ theta.T).argmax(axis=1) == y).mean() > 0.8


@pytest.mark.parametrize("bad", [3.0, -1.0, 0.5, math.nan])
@pytest.mark.parametrize("method", ["output", "objective"])
def test_a_record_of_an_unknown_class_changes_nothing(method, bad):
    x, y = three_classes()
    a_plan = checks.plan(method, n_classes=3)
    alone = checks.fit(method, a_plan, x, y, noise=FixedNoise(1))
    with_bad = checks.fit(method, a_plan, np.vstack([x, x[:1]]), np.r_[y, bad], noise=FixedNoise(1))
    assert with_bad == pytest.approx(alone, abs=4 * a_plan.tolerance / a_plan.lambda_sum)


def test_every_problem_has_its_own_linear_term():
    """Without records θ_k = −b_k/λ: no two rows have an entry in common, and all rows have the noise's variance."""
    d = 2000
    a_plan = checks.plan("objective", n_classes=3, n_features=d)
    theta = checks.fit("objective", a_plan, np.zeros((0, d)), np.zeros(0)) * a_plan.lambda_sum
    assert theta.shape == (3, d)
    for k in range(3):
        assert checks.within_variance(theta[k], a_plan.noise_std)
        assert abs(np.corrcoef(theta[k], theta[(k + 1) % 3])[0, 1]) < 5.5 / math.sqrt(d)


def test_planted_bug_one_linear_term_for_all_problems(monkeypatch):
    honest = objective.linear_term
    monkeypatch.setattr(objective, "linear_term", lambda plan, noise: np.stack([honest(plan, noise)[0]] * 3))
    with pytest.raises(AssertionError):
        test_every_problem_has_its_own_linear_term()


@pytest.mark.parametrize("variant", ["pure", "cms11"])
def test_pure_linear_term_has_the_gamma_norm(variant):
    """Without records −λθ is b: ‖b‖ ~ Gamma(d, scale); mean of 200 norms within 5 sd (1e-6)."""
    d = 30
    a_plan = checks.plan("objective", variant=variant, delta=0.0, neighboring_relation="replace_one", n_features=d)
    law = stats.gamma(d, scale=a_plan.noise_scale)
    norms = [
        np.linalg.norm(checks.fit("objective", a_plan, *checks.no_records(d))) * a_plan.lambda_sum for _ in range(200)
    ]
    assert abs(np.mean(norms) - law.mean()) < 5 * law.std() / math.sqrt(200) + 1e-3 * law.mean()


def test_huber_fit_is_robust_and_close_to_the_truth():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(3000, 2))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = np.clip(x @ [0.5, -0.3] + 0.02 * rng.normal(size=3000), -1, 1)
    y[:150] = 1.0  # gross errors
    a_plan = checks.plan("objective", loss="huber", epsilon=100.0, n_features=2, n_declared=3000, solution_norm=1.0)
    theta = checks.fit("objective", a_plan, x, y)
    assert theta == pytest.approx([0.5, -0.3], abs=0.05)


def test_problem_targets_keep_bad_records_out_of_every_problem():
    loss = Logistic()
    x = np.array([[0.6, 0.8], [math.nan, 0.0], [0.0, 1.0]])
    rows, targets = problems.problem_targets(loss, x, [0, 1, 7], norm_bound=1.0, n_features=2, n_problems=3)
    assert rows.tolist() == [[0.6, 0.8], [0.0, 0.0], [0.0, 0.0]]
    assert [t[0] for t in targets] == [1.0, -1.0, -1.0]


# ------------------------------------------------------------------------------- the accountant's forms, by quadrature


def objective_event(sigma, lambda_sum, loss, slope=1.0, curvature=0.25, norm_bound=1.0):
    return accounting.ObjectivePerturbation(sigma, lambda_sum, norm_bound, loss, slope, curvature)


@pytest.mark.parametrize("epsilon", [0.0, 0.05, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("sigma", [0.7, 2.5, 9.0])
def test_general_losses_pay_the_absolute_value(sigma, epsilon):
    """δ(ε) = E(1 − e^{ε − c₀ − a²/2 − |Z|})₊ by quadrature."""
    slope, curvature, lambda_sum, norm_bound = 0.4, 1.0, 3.0, 1.5
    a, c0 = slope * norm_bound / sigma, math.log1p(curvature * norm_bound**2 / lambda_sum)
    event = objective_event(sigma, lambda_sum, "general", slope, curvature, norm_bound)

    def integrand(z):
        return max(0.0, 1 - mpmath.exp(epsilon - c0 - a * a / 2 - abs(z))) * mpmath.npdf(z, 0, a)

    kink = max(epsilon - c0 - a * a / 2, 0.0)
    unit = a * a / (kink + a)  # how fast the normal density falls there
    with mpmath.workdps(30):
        truth = 2 * mpmath.quad(integrand, [kink + unit * k for k in (0, 1, 3, 8, 20, 50, 120)])
    assert accounting.delta(event, epsilon) == pytest.approx(float(truth), rel=1e-9, abs=1e-300)
    if 1e-300 < truth < 1:
        assert accounting.epsilon(event, float(truth)) == pytest.approx(epsilon, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(("loss", "parts"), [("monotone", ((2, 1.0), (1, 2.0))), ("general", ((2, 2.0), (2, 2**0.5)))])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_replace_one_is_a_union_of_gaussians(loss, parts, epsilon):
    """Above c₀ the bound is the sum of the Gaussian profiles, or the group of two where that is smaller."""
    event = objective_event(3.0, 50.0, loss)
    c0 = math.log1p(0.25 / 50)
    union = sum(n * checks.gaussian_profile(epsilon - c0, m / 3.0) for n, m in parts)
    half = accounting.delta(event, epsilon / 2) * (1 + math.exp(epsilon / 2))
    got = accounting.delta(event, epsilon, neighboring_relation="replace_one")
    assert got == pytest.approx(min(1.0, union, half), rel=1e-9)


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
@pytest.mark.parametrize("loss", ["monotone", "general"])
def test_renyi_bounds_hold_for_the_worst_variables(loss, relation):
    """E e^{tW} of the vertices' joint law (d = 1: all driven by one Z; d = 2: by two) stays below the bound."""
    sigma, lambda_sum, orders = 2.0, 5.0, np.array([1.25, 2.0, 5.0, 20.0])
    a, c0 = 1 / sigma, math.log1p(0.25 / lambda_sum)
    rdp = accounting.rdp(objective_event(sigma, lambda_sum, loss), orders, neighboring_relation=relation)
    rng = np.random.default_rng(0)
    z = np.concatenate([w := rng.standard_normal((200_000, 2)), -w])
    low = 0.0 if loss == "monotone" else -1.0
    extremes = [(u, v) for u in (low, 1.0) for v in ((0.0,) if relation == "add_remove" else (low, 1.0))]
    for angle in (0.0, 1.0, math.pi / 2, math.pi):  # between x and x'
        second = np.array([math.cos(angle), math.sin(angle)])
        losses = np.full(len(z), -math.inf)
        for u, v in extremes:
            shift = (u * np.array([1.0, 0.0]) - v * second) * a
            losses = np.maximum(losses, shift @ shift / 2 + z @ shift)
        for order, bound in zip(orders[:3], rdp[:3], strict=True):
            t = order - 1
            sample = np.exp(t * losses)
            moment = c0 + math.log(sample.mean()) / t
            spread = sample.std() / sample.mean() / math.sqrt(len(z)) / t
            assert moment <= bound + 6 * spread


def test_logistic_event_refuses_other_constants():
    for changes in ({"slope_bound": 2.0}, {"curvature_bound": 1.0}):
        with pytest.raises(errors.ConfigError, match=next(iter(changes))):
            accounting.ObjectivePerturbation(1.0, 1.0, 1.0, **changes)


def test_margins_of_several_classes_use_sigmoids():
    """The released probabilities of one-against-the-rest are the normalised sigmoids."""
    from dpml.release import PrivateModel

    weight = np.array([[1.0, 0.0], [0.0, 2.0], [-1.0, 0.5]])
    model = PrivateModel("logreg", {"weight": weight}, (0, 1, 2), {"kind": "array"})
    rows = np.array([[0.3, -0.4], [1.0, 1.0]])
    p = expit(rows @ weight.T)
    assert model.probabilities(rows) == pytest.approx(p / p.sum(axis=1, keepdims=True))


def test_erm_exports_what_it_names():
    assert all(hasattr(erm, name) for name in erm.__all__)


@pytest.mark.parametrize(("epsilon", "delta"), [(1e-6, 1e-3), (0.01, 0.04), (1e-3, 1e-5)])
def test_redberg23_ends_where_its_rule_cannot_be_met(epsilon, delta):
    sigma, lambda_sum = published.redberg23(epsilon, delta, 1.0, 0.25)
    assert math.isfinite(sigma)
    assert published.redberg23_delta(epsilon, sigma, lambda_sum, 1.0, 0.25) <= delta


def test_a_published_noise_that_the_accountant_does_not_confirm_is_refused_in_the_plan():
    """Redberg's profile is tighter than the Rényi form at δ = 1e-3; the plan says so before anything is charged."""
    checks.plan("objective", variant="redberg23", epsilon=0.1, delta=1e-3)
    with pytest.raises(errors.ConfigError, match=r"accountant = 'rdp'.*redberg23.*accountant='best'"):
        checks.plan("objective", variant="redberg23", epsilon=0.1, delta=1e-3, accountant="rdp")


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 800.0, 1e4])
@pytest.mark.parametrize("loss", ["monotone", "general", "logistic"])
@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
def test_profiles_survive_tiny_noise(loss, relation, epsilon):
    """a = 1000: losses of size a²/2 = 5e5; δ is 1 far below that, and nothing overflows."""
    event = objective_event(1e-3, 10.0, loss)
    assert accounting.delta(event, epsilon, neighboring_relation=relation) == pytest.approx(1.0)
    assert 4e5 < accounting.epsilon(event, 1e-5, neighboring_relation=relation) <= math.inf


@pytest.mark.parametrize("method", ["output", "objective"])
@pytest.mark.parametrize("epsilon", [1e-6, 1e-3, 1e4])
@pytest.mark.parametrize(
    "changes", [{"loss": "huber", "loss_parameter": 1e6}, {"loss": "huber"}, {}, {"norm_bound": 1e3}]
)
def test_extreme_scales_reach_their_verified_minimum(method, epsilon, changes):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 4))
    x *= changes.get("norm_bound", 1.0) / np.linalg.norm(x, axis=1, keepdims=True)
    y = np.sign(rng.normal(size=200))
    a_plan = checks.plan(method, epsilon=epsilon, **changes)
    assert np.isfinite(checks.fit(method, a_plan, x, y)).all()


@pytest.mark.parametrize("method", ["output", "objective"])
@pytest.mark.parametrize("loss", ["logistic", "smoothed_hinge", "huber"])
def test_a_regularization_too_small_to_verify_is_refused_whatever_the_records_are(method, loss):
    """A minimum that can be verified for some records only would tell them apart by failing; the limit is public."""
    with pytest.raises(errors.ConfigError, match=r"regularization = 1e-08.*at least.*'auto'"):
        checks.plan(method, loss=loss, epsilon=1e4, norm_bound=1e3, n_declared=50, regularization=1e-8)
    smallest = checks.plan(method, loss=loss, epsilon=1e4, norm_bound=1e3, solution_norm=1e9)
    rng = np.random.default_rng(6)
    for n in (0, 1, 2, 5, 50):
        x = rng.normal(size=(n, 4)) * 1e3
        checks.fit(method, smallest, x, np.sign(rng.normal(size=n)))
