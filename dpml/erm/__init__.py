"""Private empirical risk minimisation for logistic regression: output and objective perturbation."""

from dpml.erm.losses import LossConstants, logistic_constants
from dpml.erm.nonprivate import fit_nonprivate
from dpml.erm.objective import ObjectivePlan, fit_objective, plan_objective
from dpml.erm.output import OutputPlan, fit_output, plan_output
from dpml.erm.solver import Solution, minimise

__all__ = [
    "LossConstants",
    "ObjectivePlan",
    "OutputPlan",
    "Solution",
    "fit_nonprivate",
    "fit_objective",
    "fit_output",
    "logistic_constants",
    "minimise",
    "plan_objective",
    "plan_output",
]
