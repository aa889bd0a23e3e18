"""How many records a private model needs: the classical rule, and the sharper pair that knows the noise.

The rule n > √d·√(ln(1/δ))/(ε α²) is an order of magnitude for the excess population risk α of private empirical risk
minimisation, with Lipschitz constant and diameter 1 and all constants 1 (Bassily, Smith & Thakurta 2014 give the rate).
The sharper pair is about logistic loss, Lipschitz with L = norm_bound, and a solution of norm R:

* privacy: the bound on the excess empirical risk that :mod:`dpml.accounting.sample_size_methods` derives for the run's
  method; for noisy gradient descent α = L R √d s/n with s the noise multiplier of the analytic Gaussian mechanism (its
  sensitivity doubles under replace_one), so n_privacy = L R √d s/α;
* statistics: n_statistics = L² R²/α².
"""

from __future__ import annotations

import math
from typing import Any

from dpml.accounting.conversions import gaussian_noise_multiplier
from dpml.accounting.events import ADD_REMOVE, REPLACE_ONE, check_count, check_number, check_relation
from dpml.accounting.sample_size_methods import METHODS, Setting, statistics_n
from dpml.errors import ConfigError, DpmlError

RULE = "n > sqrt(d) sqrt(log(1/delta)) / (epsilon alpha^2)"
SOLUTION_NORMS = (5, 10, 15, 20, 30)
SHARPER = {
    "dp_sgd": ("dp_sgd", "noisy gradient descent"), "dp_gd": ("dp_sgd", "noisy gradient descent"),
    "objective": ("objective", "objective perturbation"), "output": ("output", "output perturbation"),
}  # fmt: skip
"""Of a run's method: the one of :data:`METHODS`, and its name.  Others are shown the first, for orientation."""
UNKNOWN = {
    "beyond": "no sharper bound can be computed at this budget",
    "other loss": "made for losses with a bounded slope, such as logistic loss; no sharper bound is known here",
    "pure": "pure epsilon-DP has no delta: this one is the rule's; no sharper bound is known here",
    "network": "the rule is about convex losses of d features, not about networks: an orientation, at the least",
}
"""Why there are no sharper numbers."""
BOUND_OVER_MEASURED = 1.4
"""Objective perturbation with R = 15, ε = 0.1 to 2 (experiments/results/sample_size.json): 1.2 to 3.2 on Adult (mean
1.8), 0.65 to 2.1 on Census-Income (mean 1.0).  Measured above the best weights of all; the bound is against norm R."""


def required_n(*, n_features: float, epsilon: float, delta: float, excess_risk: float) -> float:
    """n of the rule (a real number)."""
    return math.sqrt(n_features) * math.sqrt(-math.log(delta)) / (epsilon * excess_risk**2)


def achievable_excess_risk(*, n: float, n_features: float, epsilon: float, delta: float) -> float:
    """α of the rule."""
    return math.sqrt(math.sqrt(n_features) * math.sqrt(-math.log(delta)) / (epsilon * n))


def allowed_features(*, n: float, epsilon: float, delta: float, excess_risk: float) -> float:
    """d of the rule."""
    return (n * epsilon * excess_risk**2) ** 2 / -math.log(delta)


def required_epsilon(*, n: float, n_features: float, delta: float, excess_risk: float) -> float:
    """ε of the rule."""
    return math.sqrt(n_features) * math.sqrt(-math.log(delta)) / (n * excess_risk**2)


def solve(
    *,
    n: float | None = None,
    d: float | None = None,
    epsilon: float | None = None,
    delta: float,
    excess_risk: float | None = None,
) -> tuple[str, float]:
    """The one of n, d, epsilon, excess_risk that is None, by the rule; (its name, its value).

    Raises ConfigError unless exactly one is missing and all others are in range.
    """
    given = {"n": n, "d": d, "epsilon": epsilon, "excess_risk": excess_risk}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) != 1:
        raise ConfigError(f"exactly one of {list(given)} must be left out to be solved for; left out are {missing}.")
    checked = {name: check_number(name, value, 0.0, above=True) for name, value in given.items() if value is not None}
    delta = check_number("delta", delta, 0.0, 1.0, above=True, below=True)
    name = missing[0]
    if name == "n":
        value = required_n(
            n_features=checked["d"], epsilon=checked["epsilon"], delta=delta, excess_risk=checked["excess_risk"]
        )
    elif name == "d":
        value = allowed_features(
            n=checked["n"], epsilon=checked["epsilon"], delta=delta, excess_risk=checked["excess_risk"]
        )
    elif name == "epsilon":
        value = required_epsilon(
            n=checked["n"], n_features=checked["d"], delta=delta, excess_risk=checked["excess_risk"]
        )
    else:
        value = achievable_excess_risk(n=checked["n"], n_features=checked["d"], epsilon=checked["epsilon"], delta=delta)
    return name, value


def guidance(
    *,
    n_declared: int,
    n_features: int,
    epsilon: float,
    delta: float,
    excess_risk: float = 0.05,
    neighboring_relation: str = ADD_REMOVE,
    norm_bound: float = 1.0,
    method: str = "dp_sgd",
) -> dict[str, Any]:
    """Sample-size guidance from public values only, JSON-ready.

    Args:
        n_declared, n_features: public number of records, number of encoded features.
        epsilon, delta: the budget; epsilon > 0, 0 < delta < 1.  The δ of a run with pure ε-DP is that of the rule
            alone, which needs one: give ``method="pure"``.
        excess_risk: α that one would accept.
        norm_bound: bound on a row's norm, the Lipschitz constant of logistic loss.
        method: of the run: chooses the bound under ``sharper``; those in :data:`UNKNOWN` have none.

    Returns:
        A dict with the rule's numbers (``required_n``, ``achievable_excess_risk``, ``enough``, ``factor`` =
        required ÷ declared), the pair under ``sharper`` (``for``: whose bound it is; ``excess_expected`` is None where
        nothing was measured) and a text for people under ``text``.
    """
    n_declared = check_count("n_declared", n_declared, 1)
    n_features = check_count("n_features", n_features, 1)
    epsilon = check_number("epsilon", epsilon, 0.0, above=True)
    delta = check_number("delta", delta, 0.0, 1.0, above=True, below=True)
    excess_risk = check_number("excess_risk", excess_risk, 0.0, above=True)
    norm_bound = check_number("norm_bound", norm_bound, 0.0, above=True)
    check_relation(neighboring_relation)
    needed = required_n(n_features=n_features, epsilon=epsilon, delta=delta, excess_risk=excess_risk)
    noise = gaussian_noise_multiplier(epsilon, delta) * (2 if neighboring_relation == REPLACE_ONE else 1)
    out: dict[str, Any] = {
        "rule": RULE,
        "n_declared": n_declared,
        "n_features": n_features,
        "epsilon": epsilon,
        "delta": delta,
        "excess_risk": excess_risk,
        "required_n": math.ceil(needed),
        "achievable_excess_risk": achievable_excess_risk(
            n=n_declared, n_features=n_features, epsilon=epsilon, delta=delta
        ),
        "enough": n_declared > needed,
        "factor": needed / n_declared,
        "sharper": {"noise_multiplier": noise, "for": None, "rows": []},
    }
    if method not in UNKNOWN:
        key, name = SHARPER.get(method, SHARPER["dp_sgd"])
        settings = [Setting(delta, norm_bound, float(norm), neighboring_relation) for norm in SOLUTION_NORMS]
        out["sharper"]["for"] = name if method in SHARPER else f"{name}, for orientation"
        try:
            out["sharper"]["rows"] = [_row(key, n_declared, n_features, epsilon, excess_risk, s) for s in settings]
        except DpmlError:  # δ/(1 + e^{ε/2}) is 0, say
            method = "beyond"
    out["text"] = _text(out, neighboring_relation, UNKNOWN.get(method, ""))
    return out


def _row(key: str, n: int, d: int, epsilon: float, alpha: float, setting: Setting) -> dict[str, Any]:
    bound = METHODS[key].excess_risk(n, d, epsilon, setting)
    return {
        "solution_norm": round(setting.solution_norm),
        "n_privacy": math.ceil(METHODS[key].n(d, epsilon, alpha, setting)),
        "n_statistics": math.ceil(statistics_n(alpha, setting)),
        "excess_bound": bound,
        "excess_expected": None if key == "output" else bound / BOUND_OVER_MEASURED,
    }


def _text(facts: dict[str, Any], relation: str, unknown: str) -> str:
    n, d, epsilon, delta = facts["n_declared"], facts["n_features"], facts["epsilon"], facts["delta"]
    lines = [
        f"Sample size (n = {n:,}, d = {d}, epsilon = {epsilon:g}, delta = {delta:g}, {relation})",
        f"  rule {RULE}",
        f"  required n for excess risk {facts['excess_risk']:g}: {facts['required_n']:,}; "
        f"this n gives {facts['achievable_excess_risk']:.3g}",
    ]
    if facts["enough"]:
        lines.append(f"  enough by that rule (x{1 / facts['factor']:.2g} of what it asks)")
    else:
        factor = facts["factor"]
        fewer = allowed_features(n=n, epsilon=epsilon, delta=delta, excess_risk=facts["excess_risk"])
        features = f"d <= {int(fewer)}" if fewer >= 1 else "even d = 1 is too many"
        lines.append(
            f"  too small by x{factor:.3g}. Ways out: more data (n > {facts['required_n']:,}), larger epsilon "
            f"(> {epsilon * factor:.3g}), fewer features ({features}), or a larger excess_risk"
        )
    sharper = facts["sharper"]
    if unknown:
        lines.append(f"  ({unknown})")
        return "\n".join(lines)
    measured = sharper["rows"][0]["excess_expected"] is not None
    lines.append(f"  sharper, logistic loss by {sharper['for']}; for a solution of norm R:")
    lines.append("    n for privacy / for statistics; bound on the excess" + (" -> expected" if measured else ""))
    for row in sharper["rows"]:
        expected = f" -> {row['excess_expected']:.3g}" if measured else ""
        lines.append(
            f"    R = {row['solution_norm']:>2}: {row['n_privacy']:>9,} / {row['n_statistics']:>9,}; "
            f"{row['excess_bound']:.3g}{expected}"
        )
    return "\n".join(lines)
