"""Bugs of methods other than DP-SGD, each by one seam, that a two-world audit must find without a look at the code.

Used by the planted-bug tests and by ``experiments/audit.py``.  What is audited are tiny problems, where one record
shows most: two features, a declared size of 100, ε = 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from dpml import PrivateData, PrivateTrainer, audit
from dpml.erm import gradient_descent, linear, objective, output
from dpml.mechanisms import LaplaceMechanism, SecretNoise

EPSILON, DELTA, N = 1.0, 5e-3, 100


class Patch(Protocol):
    """What ``pytest.MonkeyPatch`` has."""

    def setattr(self, target: Any, name: str, value: Any) -> None: ...


def half_the_noise_of_output(patch: Patch) -> None:
    real = output.add_gaussian
    patch.setattr(
        output,
        "add_gaussian",
        lambda theta, *, sensitivity, noise_multiplier, noise: real(
            theta, sensitivity=sensitivity, noise_multiplier=noise_multiplier / 2, noise=noise
        ),
    )


def a_quarter_of_the_sensitivity_of_pure_output(patch: Patch) -> None:
    real = output.add_norm_gamma
    patch.setattr(
        output,
        "add_norm_gamma",
        lambda theta, *, sensitivity, epsilon, noise: real(
            theta, sensitivity=sensitivity / 4, epsilon=epsilon, noise=noise
        ),
    )


def a_tenth_of_the_regularization_in_the_solver(patch: Patch) -> None:
    real = output.solve_all
    patch.setattr(
        output,
        "solve_all",
        lambda loss, rows, targets, lambda_sum, linear, tolerance: real(
            loss, rows, targets, lambda_sum / 10, linear, tolerance
        ),
    )


def objective_without_the_linear_term(patch: Patch) -> None:
    real = objective.linear_term
    patch.setattr(objective, "linear_term", lambda plan, noise: 0.0 * real(plan, noise))


def a_third_of_the_linear_term(patch: Patch) -> None:
    real = objective.linear_term
    patch.setattr(objective, "linear_term", lambda plan, noise: real(plan, noise) / 3)


def noise_of_one_step_for_all_steps(patch: Patch) -> None:
    """Of the budget of one step, although it is spent T times."""
    real = gradient_descent.add_gaussian
    patch.setattr(
        gradient_descent,
        "add_gaussian",
        lambda total, *, sensitivity, noise_multiplier, noise: real(
            total, sensitivity=sensitivity, noise_multiplier=noise_multiplier / STEPS**0.5, noise=noise
        ),
    )


def xty_without_noise(patch: Patch) -> None:
    real = linear.noisy_statistics
    patch.setattr(
        linear, "noisy_statistics", lambda plan, gram, cross, noise: (real(plan, gram, cross, noise)[0], cross)
    )


def laplace_with_half_the_sensitivity(patch: Patch) -> None:
    patch.setattr(
        LaplaceMechanism, "moved_steps", property(lambda self: max(1, round(self.sensitivity / 2 / self.spacing)))
    )


STEPS = 9


@dataclass(frozen=True)
class Case:
    """What is audited: a method of ``PrivateTrainer``, or the Laplace mechanism."""

    model: str = "linear_svm"
    arguments: dict[str, Any] = field(default_factory=dict)
    delta: float = DELTA


OUTPUT = Case(arguments={"method": "output"})
PURE = Case(arguments={"method": "output", "variant": "pure"}, delta=0.0)
OBJECTIVE = Case("logreg", {"method": "objective"})
DESCENT = Case("logreg", {"method": "dp_gd", "steps": STEPS})
ADASSP = Case("ridge", {"method": "adassp"})
LAPLACE = Case("laplace", delta=0.0)

RUN_BUGS: list[tuple[Callable[[Patch], None], Case, int, str]] = [
    (half_the_noise_of_output, OUTPUT, 16_000, "output perturbation with half the noise"),
    (a_quarter_of_the_sensitivity_of_pure_output, PURE, 2000, "pure output perturbation, a quarter of the sensitivity"),
    (a_tenth_of_the_regularization_in_the_solver, OUTPUT, 2000, "output perturbation, the solver takes Λ/10"),
    (objective_without_the_linear_term, OBJECTIVE, 600, "objective perturbation without the linear term"),
    (a_third_of_the_linear_term, OBJECTIVE, 2500, "objective perturbation with a third of the linear term"),
    (noise_of_one_step_for_all_steps, DESCENT, 6000, "gradient descent, each step with the noise of the only one"),
    (xty_without_noise, ADASSP, 600, "AdaSSP, no noise on XᵀX's companion Xᵀy"),
    (laplace_with_half_the_sensitivity, LAPLACE, 15_000, "Laplace mechanism with half the sensitivity"),
]


def audited(case: Case, runs: int, confidence: float = 0.999) -> audit.AuditResult:
    """The two-world bound; the claim is ε = 1."""
    if case.model == "laplace":
        mechanism = LaplaceMechanism(sensitivity=1.0, epsilon=EPSILON)
        noise = SecretNoise(threads=1)

        def run(world: int, count: int) -> np.ndarray:
            return np.array([float(mechanism.release(float(world), noise).value) for _ in range(count)])

        return audit.distinguish(run, runs=runs, delta=0.0, confidence=confidence)
    rows, labels = np.zeros((2, 2)), np.array([0, 1])
    kind: dict[str, Any] = {"target_bounds": (0.0, 1.0)} if case.model == "ridge" else {"classes": [0, 1]}
    data = PrivateData.from_arrays(rows, labels, norm_bound=1.0, n_declared=N, **kind)
    trainer = PrivateTrainer(case.model, epsilon=EPSILON, delta=case.delta or None, **case.arguments)
    found = trainer.audit(data, runs=runs, confidence=confidence)
    assert found.epsilon_upper <= EPSILON * (1 + 1e-9)
    return found.result
