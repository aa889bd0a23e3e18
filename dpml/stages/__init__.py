"""Stages beside the training of a run, on the same budget and in the same ledger.

Before training: bounds of columns (:mod:`~dpml.stages.bounds`), categories (:mod:`~dpml.stages.categories`), label
frequencies (:mod:`~dpml.stages.labels`), the centre of image features (:mod:`~dpml.stages.center`).  After it: metrics
of a private hold-out (:mod:`~dpml.stages.metrics`).
:mod:`~dpml.stages.planning` fixes all of them from public knowledge, :mod:`~dpml.stages.running` charges each before it
sees a record and keeps what it gave.
"""

from .planning import STAGE_NAMES, Stage, Stages, check_shares, plan_stages
from .running import after_training, before_training, before_training_again

__all__ = [
    "STAGE_NAMES",
    "Stage",
    "Stages",
    "after_training",
    "before_training",
    "before_training_again",
    "check_shares",
    "plan_stages",
]
