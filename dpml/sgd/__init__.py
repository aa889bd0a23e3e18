"""DP-SGD: Poisson batches, per-example clipping, Gaussian noise, for any ``torch.nn.Module``.

from dpml.sgd import clipped_gradient           # for people with their own loop
sums, norms = clipped_gradient(model, loss_fn, batch, max_grad_norm)
"""

from dpml.sgd.clipping import clipped_gradient
from dpml.sgd.engine import fit_dp_sgd
from dpml.sgd.models import (
    REGRESSION,
    ModelLoss,
    RegressionLoss,
    build_model,
    check_loss,
    check_model,
    check_output,
    per_example_loss,
)
from dpml.sgd.nonprivate import fit_nonprivate_module
from dpml.sgd.planning import DPSGDPlan, plan_dp_sgd
from dpml.sgd.sampling import poisson_indices
from dpml.sgd.states import initial_state, load_state, save_state
from dpml.sgd.team import Processes
from dpml.sgd.tensors import forward, load_weights, resolve_device, weights_of

__all__ = [
    "REGRESSION",
    "DPSGDPlan",
    "ModelLoss",
    "Processes",
    "RegressionLoss",
    "build_model",
    "check_loss",
    "check_model",
    "check_output",
    "clipped_gradient",
    "fit_dp_sgd",
    "fit_nonprivate_module",
    "forward",
    "initial_state",
    "load_state",
    "load_weights",
    "per_example_loss",
    "plan_dp_sgd",
    "poisson_indices",
    "resolve_device",
    "save_state",
    "weights_of",
]
