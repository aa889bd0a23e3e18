"""Planted bugs in theorems, normal form and the contour sum: each check holds as the code is and fails with the bug.

Expected values: tests/reference, closed forms of the Gaussian, enumeration of randomized response.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import numpy as np
import pytest
from accounting_tables import close, inputs, relation_of, rows, sampled_event, value

from dpml import accounting as acc
from dpml.accounting import contour, conversions, exact, groups, mixtures, normal_form, theorems
from dpml.accounting.conversions import gaussian_epsilon
from dpml.accounting.moments import GaussianMoments

COMPOSED = rows("composed_subsampled_gaussian", "epsilon_add_remove", "epsilon_replace_one")[:8]


def accounting_modules():
    return [module for name, module in sys.modules.items() if name.startswith("dpml.accounting.")]


def clear_caches():
    for module in accounting_modules():
        for item in vars(module).values():
            if hasattr(item, "cache_clear"):
                item.cache_clear()


@pytest.fixture(autouse=True)
def fresh():
    """No cached value of the good code survives into the planted one, nor back."""
    clear_caches()
    yield
    clear_caches()


def plant(monkeypatch, name, planted):
    """Replace a function in every accounting module that imported it."""
    touched = [module for module in accounting_modules() if hasattr(module, name)]
    assert touched
    for module in touched:
        monkeypatch.setattr(module, name, planted)
    clear_caches()


def caught(check):
    with pytest.raises(AssertionError):
        check()


def check_table(table, quantity, got):
    for row in rows(table, quantity):
        assert close(row, got(row)), row["id"]


def check_composed():
    for row in COMPOSED:
        low, high = exact.interval(sampled_event(row), value(row["inputs"]["delta"]), relation_of(row))
        true = value(row["value"])
        assert true * (1 - 1e-9) <= high <= true * (1 + 1e-6)
        assert low <= true * (1 + 1e-9)


# --- the list -----------------------------------------------------------------------------------------------


def check_counts():
    """k reports of randomized response cost what k independent reports cost: all 2^k outcomes."""
    p, pure, k = 0.5, math.log(3.0), 5
    report = acc.RandomizedResponse(p, 2)
    true = 0.0
    for truths in range(k + 1):
        mass = math.comb(k, truths) * 0.75**truths * 0.25 ** (k - truths)
        true += mass * max(0.0, -math.expm1(1.5 - (2 * truths - k) * pure))
    for accountant in ("best", "pld", "rdp", "optimal", "advanced"):
        got = acc.delta(acc.SelfComposed(report, k), 1.5, accountant=accountant, neighboring_relation="replace_one")
        assert got >= true * (1 - 1e-9), accountant


def test_a_count_that_is_ignored_is_caught(monkeypatch):
    check_counts()
    good = normal_form.normal_form
    plant(monkeypatch, "normal_form", lambda event, relation: dict.fromkeys(good(event, relation), 1))
    caught(check_counts)


def check_advanced():
    check_table(
        "composition",
        "advanced_tanh",
        lambda row: acc.advanced_composition(
            value(row["inputs"]["epsilon"]),
            value(row["inputs"].get("delta", "0")),
            int(row["inputs"]["k"]),
            value(row["inputs"]["delta_prime"]),
        )[0],
    )


def test_the_logarithm_dropped_in_advanced_composition_is_caught(monkeypatch):
    check_advanced()
    good = theorems._advanced
    monkeypatch.setattr(theorems, "_advanced", lambda parts, slack, form: good(parts, math.exp(-1.0), form))
    caught(check_advanced)


def check_conversion():
    used = [row for row in rows("conversions", "rdp_to_epsilon_improved") if value(row["value"]) > 0]
    assert len(used) >= 4
    for row in used:
        x = inputs(row)
        assert close(row, conversions.rdp_to_epsilon(np.array([x["order"]]), np.array([x["rdp"]]), x["delta"]))


def test_a_conversion_with_alpha_for_alpha_minus_one_is_caught(monkeypatch):
    check_conversion()
    good = conversions.rdp_to_epsilon
    plant(monkeypatch, "rdp_to_epsilon", lambda orders, values, delta, **k: good(orders + 1, values, delta, **k))
    caught(check_conversion)


def check_relation():
    for noise in (0.5, 3.0):
        for delta in (1e-3, 1e-8):
            true = gaussian_epsilon(delta, 2 / noise)
            for accountant in ("best", "exact", "gdp", "pld", "rdp", "zcdp"):
                got = acc.epsilon(acc.Gaussian(noise), delta, accountant=accountant, neighboring_relation="replace_one")
                assert got >= true * (1 - 1e-10), accountant


def test_the_factor_two_of_replace_one_lost_is_caught(monkeypatch):
    check_relation()
    plant(monkeypatch, "effective", lambda noise, relation: noise)
    caught(check_relation)


def check_statement_of_mu():
    for relation in acc.RELATIONS:
        got = acc.epsilon(acc.GDP(0.8), 1e-6, neighboring_relation=relation)
        assert got == pytest.approx(gaussian_epsilon(1e-6, 0.8), rel=1e-10)


def test_a_mu_statement_halved_under_replace_one_is_caught(monkeypatch):
    check_statement_of_mu()
    monkeypatch.setattr(normal_form, "gaussian_of_mu", lambda mu, relation: acc.Gaussian(1 / mu))
    caught(check_statement_of_mu)


# --- the contour sum ------------------------------------------------------------------------------------------------


def check_upper():
    """The upper end stays above the closed form, even where the margins are so small that the allowances count."""
    for mu in (0.3, 2.0):
        for delta in (1e-2, 1e-6, 1e-12):
            line = ((GaussianMoments(mu / 2), 4),)
            index, chernoff = contour._saddle(line, math.log(delta))
            plan = contour.plan(line, index, chernoff, math.log(delta))
            # a line cut after a few points: the bound on the tail has to pay for it
            last = max(plan.last // 6, 4)
            tails = contour._log_tails(line, contour.lattice(plan.index), fine=False)
            position = int(np.searchsorted(contour._TIMES, plan.h * last, side="right")) - 1
            cut = replace(plan, last=last, log_tail=float(tails[position]))
            high = contour._roots(contour.build((line,), cut), math.log(delta), np.array([chernoff]), upper=True)
            assert high[0] >= gaussian_epsilon(delta, mu) * (1 - 1e-12)


def test_a_tail_that_is_cut_and_not_added_is_caught(monkeypatch):
    check_upper()
    good = contour.build
    monkeypatch.setattr(
        contour, "build", lambda parts, plan: replace(good(parts, plan), log_tail=np.full(len(parts), -math.inf))
    )
    caught(check_upper)


def check_lower():
    """With a step so coarse that aliases count, the lower end stays below the closed form."""
    for mu in (0.3, 2.0):
        for delta in (1e-2, 1e-6):
            line = ((GaussianMoments(mu), 1),)
            index, chernoff = contour._saddle(line, math.log(delta))
            plan = contour.plan(line, index, chernoff, math.log(delta))
            coarse = replace(plan, h=plan.h * 4)
            found = contour._roots(contour.build((line,), coarse), math.log(delta), np.array([chernoff]), upper=False)
            assert found[0] <= gaussian_epsilon(delta, mu) * (1 + 1e-12)


def test_aliases_forgotten_at_the_lower_end_are_caught(monkeypatch):
    check_lower()
    monkeypatch.setattr(contour, "_alias", lambda lines, epsilon: np.full(len(epsilon), -math.inf))
    caught(check_lower)


def test_one_direction_forgotten_is_caught(monkeypatch):
    check_composed()
    good = normal_form.directions
    plant(monkeypatch, "directions", lambda atoms, relation: good(atoms, relation)[-1:])
    caught(check_composed)


def test_the_pair_of_the_wrong_relation_is_caught(monkeypatch):
    check_composed()
    good = mixtures.SampledGaussianMoments
    plant(
        monkeypatch,
        "SampledGaussianMoments",
        lambda weights, sigma, way: good(weights, sigma, "remove" if way == "replace" else way),
    )
    caught(check_composed)


def test_the_half_weight_of_the_real_point_lost_is_caught(monkeypatch):
    check_composed()
    good = contour.build

    def planted(parts, plan):
        lines = good(parts, plan)
        lines.log_terms[:, 0] += math.log(2.0)
        return lines

    monkeypatch.setattr(contour, "build", planted)
    caught(check_composed)


def check_infinite_mass():
    statements = acc.Composed((acc.SelfComposed(acc.EpsilonDelta(0.1, 1e-6), 40), acc.Gaussian(2.0)))
    assert acc.epsilon(statements, 3.9e-5, accountant="exact") == math.inf
    assert acc.epsilon(statements, 4.1e-5, accountant="exact") < math.inf
    assert acc.epsilon(statements, 4.1e-5, accountant="exact") > gaussian_epsilon(2e-6, 0.5)


def test_mass_at_infinity_forgotten_is_caught(monkeypatch):
    check_infinite_mass()
    monkeypatch.setattr(exact, "_infinite_mass", lambda atoms: 0.0)
    caught(check_infinite_mass)


# --- groups ---------------------------------------------------------------------------------------------------------


def check_groups():
    event = acc.SelfComposed(acc.PoissonSampled(0.02, acc.Gaussian(1.0)), 200)
    exact_pair = acc.epsilon(acc.Group(event, 3), 1e-6)
    direct, groups._direct = groups._direct, lambda *arguments: math.inf
    try:
        chained = groups.group_epsilon(event, 1e-6, 3, accountant="pld")
    finally:
        groups._direct = direct
    assert chained >= exact_pair * (1 - 1e-9)
    assert exact_pair >= 2.5 * acc.epsilon(event, 1e-6)
    got = acc.epsilon(acc.Group(acc.Gaussian(4.0), 3), 1e-6)
    assert got == pytest.approx(gaussian_epsilon(1e-6, 0.75), rel=1e-10)


def test_a_group_charged_as_one_record_is_caught(monkeypatch):
    check_groups()
    monkeypatch.setattr(normal_form, "_group", lambda atom, size: atom)
    clear_caches()
    caught(check_groups)


def test_a_chain_without_its_factor_is_caught(monkeypatch):
    check_groups()
    monkeypatch.setattr(groups, "_log_factor", lambda epsilon, size: 0.0)
    caught(check_groups)
