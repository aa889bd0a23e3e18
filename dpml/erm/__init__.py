"""Private linear models: output and objective perturbation, full-batch descent, linear regression."""

from dpml.erm.ball import OutputRidgePlan, fit_output_ridge, plan_output_ridge
from dpml.erm.gradient_descent import GradientDescentPlan, Softmax, fit_dp_gd, plan_dp_gd
from dpml.erm.linear import AdaSspPlan, fit_adassp, plan_adassp
from dpml.erm.losses import LossConstants, logistic_constants, make_loss, softmax_constants
from dpml.erm.nonprivate import fit_nonprivate
from dpml.erm.objective import PURE_VARIANTS, ObjectivePlan, fit_objective, plan_objective
from dpml.erm.objective import VARIANTS as OBJECTIVE_VARIANTS
from dpml.erm.output import OutputPlan, fit_output, plan_output
from dpml.erm.solver import Solution, minimise

__all__ = [
    "OBJECTIVE_VARIANTS",
    "PURE_VARIANTS",
    "AdaSspPlan",
    "GradientDescentPlan",
    "LossConstants",
    "ObjectivePlan",
    "OutputPlan",
    "OutputRidgePlan",
    "Softmax",
    "Solution",
    "fit_adassp",
    "fit_dp_gd",
    "fit_nonprivate",
    "fit_objective",
    "fit_output",
    "fit_output_ridge",
    "logistic_constants",
    "make_loss",
    "minimise",
    "plan_adassp",
    "plan_dp_gd",
    "plan_objective",
    "plan_output",
    "plan_output_ridge",
    "softmax_constants",
]
