"""Privacy accounting: events in, sound (ε, δ) out.  Loads neither torch nor hydra nor dp-accounting.

from dpml import accounting as acc
event = acc.SelfComposed(acc.PoissonSampled(0.01, acc.Gaussian(1.0)), 1000)
acc.epsilon(event, delta=1e-5)
"""

from dpml.accounting.api import ACCOUNTANTS, best, delta, epsilon, rdp, rho
from dpml.accounting.calibration import calibrate, calibrate_steps
from dpml.accounting.conversions import gaussian_delta, gaussian_epsilon, gaussian_noise_multiplier
from dpml.accounting.dataset_ledger import DatasetLedger
from dpml.accounting.events import (
    ADD_REMOVE,
    RELATIONS,
    REPLACE_ONE,
    ZCDP,
    Composed,
    EpsilonDelta,
    Event,
    Gaussian,
    Laplace,
    NonPrivate,
    NoOp,
    ObjectivePerturbation,
    PoissonSampled,
    SelfComposed,
    from_json,
)
from dpml.accounting.ledger import Ledger, LedgerRecord, read_ledger
from dpml.accounting.sample_size import guidance
from dpml.accounting.trajectories import trajectory
from dpml.accounting.verification import Verification, file_digest, result_digest, verify
from dpml.results import Trajectory

__all__ = [
    "ACCOUNTANTS",
    "ADD_REMOVE",
    "RELATIONS",
    "REPLACE_ONE",
    "ZCDP",
    "Composed",
    "DatasetLedger",
    "EpsilonDelta",
    "Event",
    "Gaussian",
    "Laplace",
    "Ledger",
    "LedgerRecord",
    "NoOp",
    "NonPrivate",
    "ObjectivePerturbation",
    "PoissonSampled",
    "SelfComposed",
    "Trajectory",
    "Verification",
    "best",
    "calibrate",
    "calibrate_steps",
    "delta",
    "epsilon",
    "file_digest",
    "from_json",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_noise_multiplier",
    "guidance",
    "rdp",
    "read_ledger",
    "result_digest",
    "rho",
    "trajectory",
    "verify",
]
