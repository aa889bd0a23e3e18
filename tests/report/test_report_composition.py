"""The composed ε of a sweep, against independent formulas."""

from __future__ import annotations

import math

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from dpml import accounting
from dpml.accounting import Composed, EpsilonDelta, Event, Gaussian, ObjectivePerturbation, PoissonSampled, SelfComposed
from dpml.report.composition import compose, merge
from dpml.report.records import Charges


def part(event: Event | None, epsilon: float, *, delta: float = 1e-6, relation: str = "add_remove") -> Charges:
    return Charges(0, "0", event, epsilon, delta, relation, True)


def gaussian_epsilon(delta: float, mu: float) -> float:
    """ε of the Gaussian mechanism by root finding on its profile (Balle and Wang 2018, Theorem 8)."""

    def profile(epsilon: float) -> float:
        tail = norm.logcdf(-mu / 2 - epsilon / mu) + epsilon
        return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(tail)) - delta

    return float(brentq(profile, 0.0, 100.0, xtol=1e-12))


def test_many_gaussians_compose_to_one() -> None:
    sigmas = (2.0, 3.0, 3.0, 5.0)
    found = compose([part(Gaussian(s), gaussian_epsilon(1e-6, 1 / s)) for s in sigmas])
    mu = math.sqrt(sum(1 / s**2 for s in sigmas))
    assert found.delta == pytest.approx(4e-6)
    assert found.epsilon == pytest.approx(gaussian_epsilon(4e-6, mu), rel=1e-6)
    assert found.epsilon < found.sum_epsilon
    assert found.accountant in found.rule
    assert found.ledgers == 4


def test_the_sum_is_stated_where_it_is_smaller() -> None:
    found = compose([part(EpsilonDelta(0.3, 1e-6), 0.3), part(EpsilonDelta(0.2, 1e-6), 0.1)])
    assert found.epsilon == found.sum_epsilon == pytest.approx(0.4)
    assert found.rule.startswith("basic composition")


def test_objective_perturbation_and_dp_sgd_together() -> None:
    objective = Composed((ObjectivePerturbation(4.0, 3.0, 1.0), Gaussian(500.0)))
    sgd = SelfComposed(PoissonSampled(0.02, Gaussian(2.0)), 200)
    parts = [part(e, accounting.epsilon(e, 1e-6)) for e in (objective, sgd)]
    found = compose(parts)
    assert max(p.epsilon for p in parts) * 0.99 < found.epsilon <= parts[0].epsilon + parts[1].epsilon


def test_mixed_relations_go_through_the_group_property() -> None:
    found = compose(
        [part(Gaussian(2.0), 1.0, delta=1e-5), part(Gaussian(2.0), 0.5, delta=1e-6, relation="replace_one")]
    )
    assert found.relation == "replace_one"
    assert found.epsilon == pytest.approx(2 * 1.0 + 0.5)
    assert found.delta == pytest.approx(1e-5 * (1 + math.e) + 1e-6)
    assert "group property" in found.rule
    vacuous = compose([part(Gaussian(0.01), 900.0), part(Gaussian(2.0), 0.5, relation="replace_one")])
    assert vacuous.epsilon == math.inf


def test_no_charges_and_no_privacy() -> None:
    assert compose([]).epsilon == 0.0
    found = compose([part(Gaussian(2.0), 1.0), part(None, math.inf)])
    assert found.epsilon == math.inf
    assert "no privacy" in found.rule


def test_merge_keeps_every_charge() -> None:
    step = PoissonSampled(0.01, Gaussian(1.0))
    events = [Composed((SelfComposed(step, 50), SelfComposed(step, 50))), Gaussian(3.0), SelfComposed(step, 7)]
    merged = merge(events)
    assert merged == Composed((SelfComposed(step, 107), SelfComposed(Gaussian(3.0), 1)))
    assert accounting.epsilon(merged, 1e-6, accountant="rdp") == pytest.approx(
        accounting.epsilon(Composed(tuple(events)), 1e-6, accountant="rdp"), rel=1e-9
    )
