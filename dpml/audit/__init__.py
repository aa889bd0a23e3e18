"""Audits: attacks that turn what they find into a lower bound on ε, valid whatever the attack is worth.

An audit is handed a callable or the scores that somebody made; it knows no model and no training.

    from dpml import audit
    audit.distinguish(run, runs=100_000, delta=1e-5)          # run(world, count) -> scores
    audit.audit_one_run(scores, included, delta=1e-5)         # one run with many canaries
"""

from dpml.audit.bounds import epsilon_of_errors, mu_of_errors, upper_limit
from dpml.audit.canaries import (
    black_box_scores,
    fair_coins,
    gradient_canaries,
    input_canaries,
    likelihood_scores,
    mislabelled,
    projections,
    white_box_scores,
)
from dpml.audit.distinguishing import distinguish, distinguish_scores, one_by_one
from dpml.audit.guessing import guess_worlds, planned_cuts
from dpml.audit.one_run import (
    audit_one_run,
    correct_guesses,
    epsilon_delta_inverse,
    f_dp_excludes,
    gaussian_inverse,
    guess,
    one_run_epsilon,
    one_run_p_value,
)
from dpml.audit.result import AuditResult

__all__ = [
    "AuditResult",
    "audit_one_run",
    "black_box_scores",
    "correct_guesses",
    "distinguish",
    "distinguish_scores",
    "epsilon_delta_inverse",
    "epsilon_of_errors",
    "f_dp_excludes",
    "fair_coins",
    "gaussian_inverse",
    "gradient_canaries",
    "guess",
    "guess_worlds",
    "input_canaries",
    "likelihood_scores",
    "mislabelled",
    "mu_of_errors",
    "one_by_one",
    "one_run_epsilon",
    "one_run_p_value",
    "planned_cuts",
    "projections",
    "upper_limit",
    "white_box_scores",
]
