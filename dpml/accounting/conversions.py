"""Closed forms: the Gaussian mechanism's exact profile, and pure DP → zCDP → Rényi → (ε, δ), μ-GDP ↔ (ε, δ).

``form="tight"`` (the default) is the best conversion known, ``form="simple"`` the one of the textbooks: valid, looser,
easy to check by hand.  Every function that returns a guarantee rounds to the safe side: by more than its rounding
errors, or until the forward formula confirms it.  All logarithms are natural; α (``order``) is a Rényi order > 1.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from dpml.accounting.checks import ADD_REMOVE, check_number, check_one_of, shown
from dpml.accounting.events import MAX_SCALE, Laplace
from dpml.errors import invalid

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
UP = 1 + 4e-15
_UNIT = 2.3e-16
_LARGEST_LOG = 690.0  # of a noise: e^690 ≈ 1e300
FORMS = ("tight", "simple")
_ROUNDING = 1e-15  # times the sum of all terms' sizes: more than the error of adding a handful of them


def find_root(function, low: float, high: float, *, xtol: float, rtol: float) -> float:  # type: ignore[no-untyped-def]
    """Brent's root of ``function`` between two points of opposite sign (scipy is loaded on first use).

    As near as 5000 turns come, which halve down to 1e-300 from anywhere; callers check what they return.
    """
    from scipy import optimize

    found, _ = optimize.brentq(function, low, high, xtol=xtol, rtol=rtol, maxiter=5000, full_output=True, disp=False)
    return float(found)


def _mills(x: np.ndarray | float) -> np.ndarray:
    """Q(x)/φ(x), the Mills ratio of the standard normal."""
    return np.sqrt(np.pi / 2) * special.erfcx(np.asarray(x) / np.sqrt(2))


def gaussian_log_delta(epsilon: float, mu: float) -> float:
    """ln δ(ε) of N(0,1) against N(μ,1); ``-inf`` where δ = 0.  No range checks.

    Balle & Wang 2018, Theorem 8: δ = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ).  With u = ε/μ − μ/2 and v = ε/μ + μ/2 one has
    φ(u) = e^ε φ(v) (because v² − u² = 2ε), hence δ = φ(u)·[m(u) − m(v)] with the Mills ratio m: nothing overflows.
    For small μ the difference is the integral of −m′(x) = 1 − x·m(x) over [u, v].
    """
    if mu == 0:
        return -math.inf
    if math.isinf(mu):
        return 0.0
    u, v = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    if u > 1e150:
        return -math.inf
    if u < -1:  # then μ > 2: no cancellation
        value = float(special.ndtr(-u)) - math.exp(-u * u / 2 - _LOG_SQRT_2PI) * float(_mills(v))
        return math.log(value) if value > 0 else -math.inf
    if mu < 0.5:
        x = u + mu * (_NODES + 1) / 2
        difference = float(np.dot(_WEIGHTS, _minus_mills_slope(x))) * mu / 2
    else:
        difference = float(_mills(u) - _mills(v))
    if difference <= 0:
        return -math.inf
    rounding = 4 * _UNIT * (abs(u) * (epsilon / mu + mu / 2) + 4)
    return min(0.0, -u * u / 2 - _LOG_SQRT_2PI + math.log(difference) + rounding)


def _minus_mills_slope(x: np.ndarray) -> np.ndarray:
    """1 − x·m(x) > 0; for x ≥ 50 the asymptotic series 1/x² − 3/x⁴ + 15/x⁶ (error < 105/x⁸)."""
    large = np.maximum(x, 50.0) ** -2.0
    return np.where(x < 50.0, 1 - x * _mills(np.minimum(x, 50.0)), large - 3 * large**2 + 15 * large**3)


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Smallest δ for which a μ-Gaussian pair (μ = sensitivity ÷ noise std) is (ε, δ)-DP; ε, μ ≥ 0.

    Source: Balle & Wang 2018, Theorem 8.  Raises ConfigError for negative or non-finite arguments.

    >>> round(gaussian_delta(1.0, 1.0), 4)  # Φ(-1/2) - e Φ(-3/2)
    0.1269
    """
    epsilon, mu = check_number("epsilon", epsilon, 0.0), check_number("mu", mu, 0.0)
    return min(1.0, math.exp(gaussian_log_delta(epsilon, mu)) * UP)


def gaussian_epsilon(delta: float, mu: float) -> float:
    """Smallest ε ≥ 0 for which a μ-Gaussian pair is (ε, δ)-DP; ``inf`` for δ = 0 < μ."""
    delta, mu = check_number("delta", delta, 0.0, 1.0), check_number("mu", mu, 0.0)
    return gaussian_epsilon_unchecked(delta, mu)


def gaussian_epsilon_unchecked(delta: float, mu: float) -> float:
    """:func:`gaussian_epsilon` that also takes μ = ∞."""
    if mu == 0 or delta == 1:
        return 0.0
    if delta == 0 or math.isinf(mu):
        return math.inf
    target = math.log(delta)
    if gaussian_log_delta(0.0, mu) <= target:
        return 0.0
    # Q(u) <= exp(-u²/2) for u >= 0: this ε is enough
    high = (mu * mu / 2 + mu * math.sqrt(2 * -target)) * UP
    if math.isinf(high) or gaussian_log_delta(high, mu) > target:
        return math.inf  # above all floats, or where u has no digits left
    root = find_root(lambda e: gaussian_log_delta(e, mu) - target, 0.0, high, xtol=1e-300, rtol=1e-15)
    return min(high, _nudge(root, lambda e: gaussian_log_delta(e, mu) <= target))


def gaussian_noise_multiplier(epsilon: float, delta: float) -> float:
    """Smallest noise std ÷ L2 sensitivity with which the Gaussian mechanism is (ε, δ)-DP; ε ≥ 0, 0 < δ < 1.

    Raises ConfigError where ε and δ are so small together that the noise is above all floats.
    """
    epsilon = check_number("epsilon", epsilon, 0.0)
    delta = check_number("delta", delta, 0.0, 1.0, above=True, below=True)
    target = math.log(delta)

    def excess(log_sigma: float) -> float:
        return max(gaussian_log_delta(epsilon, math.exp(-log_sigma)), -1e300) - target

    # enough in any case: δ(0) = 2Φ(1/2σ) − 1 ≤ 1/(σ√(2π)); from there or from √(2 ln(1/δ))/ε the root is bracketed
    start = -_LOG_SQRT_2PI - target
    if epsilon > 0:
        start = min(start, max(math.log(2 * -target) / 2 - math.log(epsilon), math.log(1e-6)))
    low = high = min(start, _LARGEST_LOG)
    while excess(low) <= 0:
        low -= 1.0
    while excess(high) > 0:
        high += 1.0
        if high > _LARGEST_LOG:
            raise invalid(
                "(epsilon, delta)", (epsilon, delta), "reached by a noise below 1e300", "Raise epsilon or delta."
            )
    sigma = math.exp(find_root(excess, low, high, xtol=1e-15, rtol=1e-15))
    return _nudge(sigma, lambda s: gaussian_log_delta(epsilon, 1 / s) <= target)


def _nudge(value: float, holds) -> float:  # type: ignore[no-untyped-def]
    """``value`` moved up, in steps that double from 4e-15 relative, until ``holds`` is true; ``inf`` at the last."""
    step = 4e-15
    while value < math.inf and not holds(value):
        value = max(value * (1 + step), math.nextafter(value, math.inf))
        step *= 2
    return value


def rdp_to_epsilon(orders: np.ndarray, values: np.ndarray, delta: float, *, form: str = "tight") -> float:
    """Smallest ε over the orders, not below 0.

    tight: ε = r + ln((α−1)/α) − (ln δ + ln α)/(α−1)  (Canonne, Kamath & Steinke 2020, Proposition 12; the same as Balle
    et al. 2020, Theorem 21).  simple: ε = r + ln(1/δ)/(α−1)  (Mironov 2017, Proposition 3).

    Args:
        orders: α > 1, finite.
        values: Rényi divergences r at these orders (may be inf), same shape.
        delta: δ in [0, 1]; at δ = 0 the answer is ``inf``.
        form: one of :data:`FORMS`.

    Raises:
        ConfigError: an argument out of range, a NaN, or shapes that differ.
    """
    orders, values = _check_curve(orders, values)
    delta = check_number("delta", delta, 0.0, 1.0)
    check_form(form)
    if delta == 0:
        return math.inf
    if delta == 1:
        return 0.0
    log_delta = math.log(delta)
    if form == "simple":
        epsilons = (values - log_delta / (orders - 1)) * UP
    else:
        log_share = np.log1p(-1 / orders)
        epsilons = values + log_share - (log_delta + np.log(orders)) / (orders - 1)
        epsilons = epsilons + _ROUNDING * (values - log_share + (1 - log_delta + np.log(orders)) / (orders - 1))
    return max(0.0, float(np.min(epsilons, initial=math.inf)))


def rdp_to_delta(orders: np.ndarray, values: np.ndarray, epsilon: float, *, form: str = "tight") -> float:
    """Smallest δ ≤ 1 over the orders; arguments, sources and errors as :func:`rdp_to_epsilon`, ε ≥ 0.

    tight: δ = e^{(α−1)(r−ε)}/(α−1) · (1 − 1/α)^α.  simple: δ = e^{(α−1)(r−ε)}.
    """
    orders, values = _check_curve(orders, values)
    epsilon = check_number("epsilon", epsilon, 0.0)
    check_form(form)
    with np.errstate(over="ignore", invalid="ignore"):
        logs = (orders - 1) * (values - epsilon)
        size = (orders - 1) * (values + epsilon) + 1
        if form == "tight":
            share = orders * np.log1p(-1 / orders)
            logs = logs - np.log(orders - 1) + share
            size = size + np.abs(np.log(orders - 1)) - share + orders / (orders - 1)
        logs = np.nan_to_num(logs + _ROUNDING * size, nan=math.inf)
    return min(1.0, math.exp(min(0.0, float(np.min(logs, initial=math.inf)))) * UP)


def check_form(form: object) -> str:
    """The form itself; raises :class:`ConfigError` for any other value."""
    return check_one_of("form", form, FORMS)


def check_array(name: str, value: object, allowed: str) -> np.ndarray:
    """``value`` (a number or nested sequences of them) as a float array, else :class:`ConfigError`."""
    try:
        array = np.asarray(value)
        if array.dtype.kind == "O":  # fractions, say, and integers beyond 64 bits
            items = [item if isinstance(item, float) else check_number(name, item, -math.inf) for item in array.ravel()]
            array = np.array(items, dtype=float).reshape(array.shape)
    except (TypeError, ValueError, OverflowError):  # ragged, or not numbers
        raise invalid(name, shown(value), allowed) from None
    if array.dtype.kind not in "iuf":
        raise invalid(name, shown(value), allowed)
    return array.astype(float)


def _check_curve(orders: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Orders and divergences as float arrays; divergences below 0 by a rounding error count as 0."""
    orders = check_array("orders", orders, "finite numbers > 1")
    if not np.all(np.isfinite(orders)) or np.any(orders <= 1):
        raise invalid("orders", shown(orders.tolist()), "finite numbers > 1")
    allowed = f"Rényi divergences (no NaN) of shape {orders.shape}, as orders"
    values = check_array("values", values, allowed)
    if values.shape != orders.shape or np.any(np.isnan(values)):
        raise invalid("values", shown(values.tolist()), allowed)
    return orders, np.maximum(values, 0.0)


def _check_or_inf(name: str, value: float) -> float:
    return math.inf if isinstance(value, float) and value == math.inf else check_number(name, value, 0.0)


def zcdp_to_epsilon(rho: float, delta: float, *, form: str = "tight") -> float:
    """ε(δ) of ρ-zCDP, ρ in [0, ∞], δ in [0, 1].

    tight: the bound of :func:`rdp_to_epsilon` with r = ρα, minimised over all real α > 1.  simple: ρ + 2√(ρ ln(1/δ))
    (Bun & Steinke 2016, Proposition 1.3), which is the minimum over α of the simple Rényi form.
    """
    rho, delta = _check_or_inf("rho", rho), check_number("delta", delta, 0.0, 1.0)
    check_form(form)
    if rho == 0 or delta == 1:
        return 0.0
    if delta == 0 or math.isinf(rho):
        return math.inf
    level = -math.log(delta)
    if form == "simple":
        return (rho + 2 * math.sqrt(rho * level)) * UP

    def bound(log_order: float) -> float:
        t = math.exp(log_order)  # α − 1
        gain = math.log1p(1 / t)
        size = rho * (t + 1) + gain + (level + math.log1p(t)) / t
        return rho * (t + 1) - gain + (level - math.log1p(t)) / t + _ROUNDING * size

    return max(0.0, _minimum(bound, 0.5 * math.log(min(max(level, 1e-3) / rho, 1e200))) * UP)


def zcdp_to_delta(rho: float, epsilon: float, *, form: str = "tight") -> float:
    """δ(ε) of ρ-zCDP, ρ in [0, ∞], ε ≥ 0.

    tight: :func:`rdp_to_delta` with r = ρα, minimised over all real α > 1.  simple: e^{−(ε−ρ)²/4ρ} for ε ≥ ρ, else 1
    (Bun & Steinke 2016, Proposition 1.3 solved for δ).
    """
    rho, epsilon = _check_or_inf("rho", rho), check_number("epsilon", epsilon, 0.0)
    check_form(form)
    if rho == 0:
        return 0.0
    if math.isinf(rho):
        return 1.0
    if form == "simple":
        gap = max(0.0, (epsilon - rho) * (1 - 1e-15) - 1e-15 * rho)
        return min(1.0, math.exp(-gap / rho * gap / 4 * (1 - 1e-15)) * UP)

    def log_delta(log_order: float) -> float:
        t = math.exp(log_order)
        share = (t + 1) * math.log1p(1 / t)
        size = t * (rho * (t + 1) + epsilon) + abs(log_order) + share
        return t * (rho * (t + 1) - epsilon) - log_order - share + _ROUNDING * size

    centre = min(max((epsilon - rho) / (2 * rho), 1e-3), 1e100)
    return min(1.0, math.exp(min(0.0, _minimum(log_delta, math.log(centre)))) * (1 + 1e-13))


def largest_zcdp_rho(epsilon: float, delta: float, *, form: str = "tight") -> float:
    """Largest ρ, rounded down, whose :func:`zcdp_to_epsilon` at δ is at most ε; ε ≥ 0, 0 < δ < 1.

    A budget for zCDP mechanisms inside (ε, δ).  The converse is false: (ε, δ)-DP does not imply zCDP.
    simple: (√(ln(1/δ) + ε) − √ln(1/δ))².
    """
    epsilon = check_number("epsilon", epsilon, 0.0)
    delta = check_number("delta", delta, 0.0, 1.0, above=True, below=True)
    check_form(form)
    level = -math.log(delta)
    low = (epsilon / (math.sqrt(level + epsilon) + math.sqrt(level))) ** 2 / UP**4
    if form == "simple":
        return low
    low = low or max(delta * delta, 1e-290)
    while zcdp_to_epsilon(low, delta) > epsilon:
        low /= 2
        if low < 1e-300:
            return 0.0
    high = 2 * low
    while zcdp_to_epsilon(high, delta) <= epsilon:
        low, high = high, 2 * high
    while high > low * (1 + 1e-13):
        middle = math.sqrt(low * high)
        if not low < middle < high:
            break
        low, high = (middle, high) if zcdp_to_epsilon(middle, delta) <= epsilon else (low, middle)
    return low


def zcdp_to_rdp(rho: float, orders: np.ndarray) -> np.ndarray:
    """The Rényi curve ρα of ρ-zCDP (Bun & Steinke 2016, Definition 1.1) at orders α ≥ 1, shape as ``orders``.

    >>> zcdp_to_rdp(0.5, np.array([2.0, 4.0])).round(9).tolist()
    [1.0, 2.0]
    """
    rho, orders = _check_or_inf("rho", rho), _check_orders(orders)
    with np.errstate(invalid="ignore", over="ignore"):
        return np.where(orders < math.inf, rho * orders * UP, math.inf if rho else 0.0)


def pure_to_zcdp(epsilon: float, *, form: str = "tight") -> float:
    """ρ of ε-DP.  tight: ε·tanh(ε/2), the smallest ρ for all ε-DP mechanisms.  simple: ε²/2 (Bun & Steinke 2016,
    Proposition 1.4).

    Proof of the tight form.  Every ε-DP pair is a post-processing of binary randomized response with odds e^ε (Kairouz,
    Oh & Viswanath 2015), so that by data processing D_α is at most that of randomized response,

        D_α = ln[cosh((2α−1)h)/cosh h]/(α−1),   h = ε/2.

    With s = 2α − 1 > 1 one has α(α−1) = (s² − 1)/4, and D_α ≤ α·ε·tanh(ε/2) says

        ln cosh(sh) − ln cosh(h) ≤ (s² − 1)/2 · h·tanh h.

    φ(v) = ln cosh √v is concave on v > 0: φ′(v) = tanh(x)/(2x) at x = √v, and tanh(x)/x decreases because its
    derivative is (2x − sinh 2x)/(2x² cosh² x) < 0.  A concave function lies below its tangent at v = h²:

        φ(s²h²) − φ(h²) ≤ φ′(h²)·(s² − 1)h² = tanh(h)/(2h)·(s² − 1)h²,

    which is the claim.  No smaller constant serves: for α → 1, D_α/α tends to the Kullback-Leibler divergence of
    randomized response, which is ε·tanh(ε/2).
    """
    epsilon = check_number("epsilon", epsilon, 0.0)
    if check_form(form) == "simple":
        return epsilon * epsilon / 2 * UP
    return min(epsilon, epsilon * math.tanh(epsilon / 2) * UP)


def pure_to_rdp(epsilon: float, orders: np.ndarray, *, form: str = "tight") -> np.ndarray:
    """D_α of ε-DP at orders α in [1, ∞] (1: Kullback-Leibler, ∞: max divergence), shape as ``orders``.

    tight: binary randomized response, ln[cosh((α−½)ε)/cosh(ε/2)]/(α−1) (see :func:`pure_to_zcdp`; Mironov 2017,
    Proposition 5).  simple: α·ε²/2 (Bun & Steinke 2016, Proposition 1.4), ``inf`` at α = ∞.
    """
    epsilon, orders = check_number("epsilon", epsilon, 0.0), _check_orders(orders)
    if check_form(form) == "simple":
        return zcdp_to_rdp(epsilon * epsilon / 2, orders)
    flat = np.where((orders == 1) | np.isinf(orders), 2.0, orders)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.where(
            np.isinf(orders), epsilon, np.where(orders == 1, pure_to_zcdp(epsilon), _response(epsilon, flat))
        )


def laplace_to_rdp(scale: float, orders: np.ndarray) -> np.ndarray:
    """D_α of Laplace noise of ``scale`` ÷ sensitivity > 0 at orders from 1 to ∞, both included.

    Mironov 2017, Proposition 6; its limits are 1/b + e^{−1/b} − 1 at α = 1 (Kullback-Leibler) and 1/b at ∞.
    """
    from dpml.accounting import renyi

    scale, orders = check_number("scale", scale, 0.0, MAX_SCALE, above=True), _check_orders(orders)
    pure = 1 / scale
    inside = np.where((orders > 1) & np.isfinite(orders), orders, 2.0)
    with np.errstate(all="ignore"):  # orders near the largest float
        found = renyi.rdp(Laplace(scale), inside.ravel(), ADD_REMOVE).reshape(inside.shape)
    found = np.where(np.isnan(found), pure * UP, np.minimum(found, pure * UP))  # D_α grows with α up to 1/b
    found = np.where(orders == 1, (pure + math.expm1(-pure)) * UP, found)
    return np.where(np.isinf(orders), pure * UP, found)


def _response(epsilon: float, orders: np.ndarray) -> np.ndarray:
    """D_α of binary randomized response at finite orders > 1."""
    t = orders - 1
    near = orders * epsilon < 600.0
    half = np.where(near, orders * epsilon, 0.0) / 2
    # cosh A/cosh B − 1 = 2 sinh((A+B)/2) sinh((A−B)/2)/cosh B has no cancellation at small ε
    excess = 2 * np.sinh(half) * np.sinh(np.where(near, t * epsilon, 0.0) / 2) / math.cosh(min(epsilon, 600.0) / 2)
    far = t * epsilon + np.log1p(np.exp(-(2 * orders - 1) * epsilon)) - math.log1p(math.exp(-epsilon))
    return np.minimum(np.where(near, np.log1p(excess), far) / t * (1 + 1e-13), epsilon)


def _check_orders(orders: np.ndarray) -> np.ndarray:
    allowed = "numbers >= 1 (inf allowed)"
    orders = check_array("orders", orders, allowed)
    if np.any(np.isnan(orders)) or np.any(orders < 1):
        raise invalid("orders", shown(orders.tolist()), allowed)
    return orders


def pure_to_gdp(epsilon: float) -> float:
    """Smallest μ for which every ε-DP mechanism is μ-GDP: −2·Φ^{−1}(1/(1+e^ε)).

    Every ε-DP mechanism has a trade-off function ≥ f_ε, the one of randomized response: the two segments from (0, 1)
    over the kink (c, c), c = 1/(1+e^ε), to (1, 0).  The Gaussian G_μ(a) = Φ(Φ^{−1}(1−a) − μ) is convex with the same
    ends, so that it lies below both segments exactly if G_μ(c) ≤ c, that is −Φ^{−1}(c) − μ ≤ Φ^{−1}(c).
    (ε, δ)-DP with δ > 0 is μ-GDP for no μ: its trade-off function starts at 1 − δ, every G_μ at 1.
    """
    epsilon = check_number("epsilon", epsilon, 0.0)
    if epsilon < 1:  # Φ^{-1}(½ − y) = −√2·erfinv(2y) keeps the digits of a small ε
        root = math.sqrt(2) * float(special.erfinv(math.tanh(epsilon / 2)))
    else:
        root = -float(special.ndtri_exp(-epsilon - math.log1p(math.exp(-epsilon))))
    return 2 * root * (1 + 1e-14)


def gdp_to_zcdp(mu: float) -> float:
    """ρ = μ²/2 of μ-GDP: its Rényi curve is the Gaussian's, αμ²/2 (Dong, Roth & Su 2022, Corollary B.6).

    >>> round(gdp_to_zcdp(2.0), 9)
    2.0
    """
    mu = check_number("mu", mu, 0.0)
    return mu * mu / 2 * UP


def gdp_to_rdp(mu: float, orders: np.ndarray) -> np.ndarray:
    """The Rényi curve αμ²/2 of μ-GDP at orders α ≥ 1, shape as ``orders`` (same source)."""
    mu = check_number("mu", mu, 0.0)
    return zcdp_to_rdp(mu * mu / 2, orders)


def gdp_to_epsilon(mu: float, delta: float) -> float:
    """ε(δ) of μ-GDP, exact: :func:`gaussian_epsilon` (Dong, Roth & Su 2022, Corollary 2.13)."""
    return gaussian_epsilon(delta, mu)


def gdp_to_delta(mu: float, epsilon: float) -> float:
    """δ(ε) of μ-GDP, exact: :func:`gaussian_delta` (same source)."""
    return gaussian_delta(epsilon, mu)


def largest_gdp_mu(epsilon: float, delta: float) -> float:
    """Largest μ, rounded down, with which μ-GDP implies (ε, δ)-DP; ε ≥ 0, 0 < δ < 1.  The converse is false."""
    sigma = gaussian_noise_multiplier(epsilon, delta)
    return _nudge_down(1 / sigma, lambda mu: gaussian_log_delta(float(epsilon), mu) <= math.log(delta))


def _nudge_down(value: float, holds) -> float:  # type: ignore[no-untyped-def]
    """``value`` moved down, in steps that double from 4e-15 relative, until ``holds`` is true; 0 at the last."""
    step = 4e-15
    while value > 0 and not holds(value):
        value = min(value * max(0.0, 1 - step), math.nextafter(value, 0.0))
        step *= 2
    return value


def classical_gaussian_noise_multiplier(epsilon: float, delta: float) -> float:
    """√(2 ln(1.25/δ))/ε, the textbook noise std ÷ L2 sensitivity; 0 < ε < 1 only (Dwork & Roth 2014, Theorem A.1).

    The proof needs ε < 1, and for large ε the formula is NOT private: use :func:`gaussian_noise_multiplier`, which is
    smaller wherever both hold.

    >>> round(classical_gaussian_noise_multiplier(0.5, 1e-5), 3)  # √(2 log(1.25/δ))/ε
    9.69
    """
    if isinstance(epsilon, float | int) and not isinstance(epsilon, bool) and 1 <= epsilon < math.inf:
        raise invalid(
            "epsilon",
            shown(epsilon),
            "below 1: the classical Gaussian noise has no proof from there on and falls short at large epsilon",
            "Use gaussian_noise_multiplier, which is exact for every epsilon.",
        )
    epsilon = check_number("epsilon", epsilon, 0.0, 1.0, above=True, below=True)
    delta = check_number("delta", delta, 0.0, 1.0, above=True, below=True)
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon * UP


def _minimum(function, centre: float) -> float:  # type: ignore[no-untyped-def]
    """Smallest value found near ``centre`` on the log axis, ``inf`` for a NaN; accuracy only matters for tightness."""

    def value(x: float) -> float:
        found = function(float(x))
        return math.inf if math.isnan(found) else found

    grid = centre + np.linspace(-12.0, 12.0, 97)
    values = [value(x) for x in grid]
    best = int(np.argmin(values))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    from scipy import optimize

    bounds, options = (float(low), float(high)), {"xatol": 1e-9}
    with np.errstate(invalid="ignore", over="ignore"):
        found = float(optimize.minimize_scalar(value, bounds=bounds, method="bounded", options=options).fun)
    return values[best] if math.isnan(found) else min(found, values[best])
