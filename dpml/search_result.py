"""The record of a finished private search: what is released, and what only the custodian sees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpml.accounting import Trajectory
from dpml.release import PrivateModel
from dpml.results import RESULT_FORMAT, CustodianOnly, Guarantee, to_jsonable
from dpml.search_arguments import SELECTION_PAID, readable
from dpml.search_plan import SearchPlan
from dpml.version import __version__


@dataclass(frozen=True)
class SearchResult:
    """What a finished search leaves.

    Attributes:
        guarantee: of everything that is released, recomputed from the ledger.
        best_index, best_params: the winner; ``None`` where no run gave a model (``failure`` says why).
        model: the winner's model.
        score: noisy hold-out accuracy of the winner (``repeat`` only); too good on average, as it is that of a winner.
        metrics: on a test set declared public.
        private: number of runs, candidates drawn, their scores, size of the parts: for the custodian only.  Not
            part of the repr, of a pickle or of ``dataclasses.asdict``.
        failure: ``None``, or what is released in place of a model.
    """

    guarantee: Guarantee
    trajectory: Trajectory
    ledger: Mapping[str, Any]
    metrics: Mapping[str, float | str]
    plan: SearchPlan
    best_index: int | None
    best_params: Mapping[str, Any] | None
    model: PrivateModel | None
    score: float | None
    accountant_used: str
    run_dir: Path | None
    private: Mapping[str, Any] = field(repr=False)
    failure: str | None = None
    command: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "private", CustodianOnly(self.private))

    def to_dict(self) -> dict[str, Any]:
        """The content of ``result.json``: public or charged values only (``private`` is left out)."""
        winner = None if self.best_params is None else readable(self.best_params)
        return {
            "format": RESULT_FORMAT,
            "dpml_version": __version__,
            "epsilon": to_jsonable(self.guarantee.epsilon),
            "delta": self.guarantee.delta,
            "neighboring_relation": self.guarantee.neighboring_relation,
            "unit": self.guarantee.unit,
            "accountant": self.guarantee.accountant,
            "accountant_used": self.accountant_used,
            "epsilon_source": "recomputed",
            "assumptions": list(self.guarantee.assumptions),
            "method": self.plan.method,
            "model": self.plan.model,
            "steps": 1,
            "noise_multiplier": None,
            "metrics": dict(self.metrics),
            "nonprivate": None,
            "selection": {
                "paid": True,
                "text": SELECTION_PAID,
                "mechanism": self.plan.mechanism,
                "candidates": len(self.plan.candidates),
                "best_index": self.best_index,
                "best_params": winner,
                "score": to_jsonable(self.score),
                "score_normaliser": self.plan.n_holdout,
                "failure": self.failure,
            },
            "trajectory": to_jsonable(self.trajectory),
            "guidance": to_jsonable(self.plan.guidance),
            "plan": self.plan.to_dict(),
            "ledger": dict(self.ledger),
            "data": to_jsonable(self.plan.data),
            **({} if self.command is None else {"command": self.command}),
        }
