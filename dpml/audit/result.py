"""What an audit found, as a frozen record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dpml.results import to_jsonable


@dataclass(frozen=True)
class AuditResult:
    """A lower bound on ε that holds with ``confidence``, and how it came about.

    Attributes:
        epsilon_lower: the mechanism is (ε, δ)-private for no ε below it; wrong with probability at most
            1 − ``confidence`` over the runs (and not at all about a particular mechanism that was seen to pass).
        delta: the δ that the bound is at.
        confidence: in (0, 1).
        runs: runs of the mechanism that were used, selection included; 1 for one-run auditing.
        method: ``"two_world"``, ``"two_world_gaussian"``, ``"one_run"``, ``"one_run_f_dp"``, ``"one_run_gaussian"``.
        threshold: "in" is said when ``sign · score >= sign · threshold``; None where guesses are ranked.
        sign: 1 when members score higher, −1 when lower.
        counts: errors and trials (two worlds), or canaries, guesses and right guesses (one run).
        rates: upper confidence limits on the error rates, observed rates, and μ where it was bounded.
        assumptions: what the bound takes for granted beside the runs; a bound with a trade-off that is *assumed* says
            so here.
    """

    epsilon_lower: float
    delta: float
    confidence: float
    runs: int
    method: str
    threshold: float | None
    sign: int
    counts: Mapping[str, int] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()

    def exceeds(self, epsilon: float) -> bool:
        """Whether the audit contradicts a claim of (``epsilon``, δ)-privacy at its confidence."""
        return self.epsilon_lower > epsilon

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        found: dict[str, Any] = to_jsonable(self)
        return found

    def __str__(self) -> str:
        text = (
            f"epsilon >= {self.epsilon_lower:.4g} at delta {self.delta:.3g}, confidence {self.confidence:g} "
            f"({self.method}, {self.runs:,} run{'s' if self.runs != 1 else ''})"
        )
        return text + "".join(f"\n  assumes: {line}" for line in self.assumptions)
