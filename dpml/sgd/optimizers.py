"""From a step's noisy gradient to the weights: momentum, Adam, weight decay, averages of the iterates.

All of it is **post-processing of charged gradients**: what an optimizer sees is ĝ_t (clipped, noised, charged before it
was drawn), its own earlier output and public numbers of the plan.  So no choice made here costs budget, and none can
break the guarantee; averages of the iterates and the weights of every step are as private as the last ones.

With η_t = ``plan.rate(t)``, a function of the logical step only (micro-batches never come here):

* ``sgd``: heavy ball, not dampened: m ← μ m + ĝ,  w ← w − η_t m.
* ``adam``, ``adamw``: m ← β₁ m + (1 − β₁) ĝ,  v ← β₂ v + (1 − β₂) ĝ²,  with the k-th update's m̂ = m/(1 − β₁ᵏ),
  v̂ = v/(1 − β₂ᵏ):

      w ← w − η_t m̂ / (√max(v̂ − φ̂, γ φ̂) + 1e-8)

  φ = (σC/B)² is the noise variance of one entry of ĝ, public.  It adds to E[ĝ²], where Adam wants the square of the
  clean gradient, so it is subtracted (DP-AdamBC: Tang, Shpilevskiy and Lécuyer 2023, "DP-AdamBC: Your DP-Adam Is
  Actually DP-SGD (Unless You Apply Bias Correction)", Algorithm 1).  The paper's floor γ' is an absolute number to
  tune; here it is the share γ = ``FLOOR`` of the noise variance, so that Adam stays indifferent to the scale of the
  loss.  Under adaptive clipping φ changes from step to step, so φ̂ is averaged with the weights of v̂.
  ``bias_correction=False`` sets φ̂ = 0: plain Adam on noisy gradients.
* weight decay λ (``sgd``, ``adamw``) is decoupled: w ← (1 − η_t λ) w before the step (Loshchilov and Hutter 2019,
  Algorithm 2); it is never added to a gradient.

Averages (``averaging``), of the iterates after each step:

* ``tail``: the mean over the last ⌈share · T⌉ steps, at least one.
* ``ema``: weights proportional to d^(age), d = 1 − 1/(share · T) (0 where that is negative: the last iterate), summing
  to one from the first step on, so that the starting point has no weight.

State is kept in the parameter's dtype, but float32 at least.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch

from dpml.errors import ModelError

if TYPE_CHECKING:
    from dpml.sgd.planning import DPSGDPlan

Tensors = dict[str, torch.Tensor]
SCALARS = "scalars"
FLOOR = 0.1  # γ: least corrected second moment, as a share of the noise variance (set on scikit-learn's digits)
EPSILON = 1e-8  # in the denominator, as everywhere


def optimizer_parts(plan: DPSGDPlan) -> tuple[str, ...]:
    """Names of the parts that hold one tensor per parameter, for this plan's optimizer and averaging."""
    moments = ("momentum",) if plan.optimizer == "sgd" else ("momentum", "second_moment")
    return moments if plan.averaging == "none" else (*moments, "average")


def state_dtype(parameter: torch.Tensor) -> torch.dtype:
    """Of momentum, moments and averages: the parameter's own, but float32 at least."""
    return torch.promote_types(parameter.dtype, torch.float32)


def initial_parts(plan: DPSGDPlan, parameters: Mapping[str, torch.Tensor]) -> dict[str, Tensors]:
    """``state()`` of an optimizer that has made no step."""
    parts = {
        part: {name: torch.zeros_like(p, dtype=state_dtype(p), requires_grad=False) for name, p in parameters.items()}
        for part in optimizer_parts(plan)
    }
    return {**parts, SCALARS: _scalars(0, 0, 0.0)}


def check_parts(found: Mapping[str, Mapping[str, torch.Tensor]], wanted: Mapping[str, Tensors], what: str) -> None:
    """ModelError unless parts, names and shapes are the same; names the first part that does not fit."""
    if set(found) != set(wanted):
        raise ModelError(
            f"{what} holds the parts {sorted(found)}, this plan's optimizer has {sorted(wanted)}: it belongs to a run "
            "with another optimizer or averaging."
        )
    for part, tensors in wanted.items():
        given = found[part]
        if set(given) != set(tensors) or any(given[k].shape != v.shape for k, v in tensors.items()):
            raise ModelError(f"{what}'s {part} are not those of this model: names or shapes differ.")


class Optimizer:
    """Updates ``parameters`` in place from noisy gradients; post-processing (see the module docstring).

    Args:
        plan: optimizer, rates, decay and averaging; all public.
        parameters: the trained parameters by name (``trainable(model)``): frozen ones never appear.
    """

    def __init__(self, plan: DPSGDPlan, parameters: Tensors) -> None:
        self._plan = plan
        self._names = list(parameters)
        self._parameters = list(parameters.values())
        self._dtypes = [state_dtype(p) for p in self._parameters]
        self._half = any(p.dtype != dtype for p, dtype in zip(self._parameters, self._dtypes, strict=True))
        self._parts: dict[str, list[torch.Tensor]] = {}
        self._updates, self._averaged, self._noise = 0, 0, 0.0
        self._default_std = plan.gradient_noise_multiplier * plan.max_grad_norm / plan.expected_batch_size
        self.load(initial_parts(plan, parameters))

    @property
    def noise_variance(self) -> float:
        """(σC/B)² of one entry of the gradient at the plan's clipping norm: public."""
        return self._default_std**2

    def step(self, t: int, gradient: Tensors, noise_std_per_entry: float | None = None) -> None:
        """One logical step.

        Args:
            t: 0 … T−1; the rate is ``plan.rate(t)``.  Steps that a crash lost are left out, never made up for.
            gradient: ĝ by name, every name of the parameters.
            noise_std_per_entry: standard deviation of the noise in one entry of ĝ; default σC/B.  Under adaptive
                clipping pass σ_Δ C_t / B.
        """
        plan = self._plan
        rate = plan.rate(t)
        gradients = [gradient[name].to(dtype) for name, dtype in zip(self._names, self._dtypes, strict=True)]
        with torch.no_grad():
            if plan.weight_decay:
                torch._foreach_mul_(self._parameters, 1.0 - rate * plan.weight_decay)
            self._updates += 1
            if plan.optimizer == "sgd":
                momentum = self._parts["momentum"]
                torch._foreach_mul_(momentum, plan.momentum)
                torch._foreach_add_(momentum, gradients)
                torch._foreach_add_(self._parameters, momentum, alpha=-rate)
            else:
                std = self._default_std if noise_std_per_entry is None else noise_std_per_entry
                self._adam(rate, gradients, noise_variance(std))
            if plan.averaging != "none" and is_averaged(plan, t):
                self._average()

    def _adam(self, rate: float, gradients: list[torch.Tensor], variance: float) -> None:
        first, second = self._plan.betas
        k, momentum, moment = self._updates, self._parts["momentum"], self._parts["second_moment"]
        torch._foreach_lerp_(momentum, gradients, 1.0 - first)
        torch._foreach_mul_(moment, second)
        torch._foreach_addcmul_(moment, gradients, gradients, 1.0 - second)
        corrected = torch._foreach_div(moment, 1.0 - second**k)
        if self._plan.bias_correction:
            self._noise = second * self._noise + (1.0 - second) * variance
            noise = self._noise / (1.0 - second**k)
            torch._foreach_sub_(corrected, noise)
            torch._foreach_clamp_min_(corrected, FLOOR * noise)
        torch._foreach_sqrt_(corrected)
        torch._foreach_add_(corrected, EPSILON)
        if self._half:  # in float32, rounded once
            steps = torch._foreach_div(momentum, corrected)
            torch._foreach_add_(self._parameters, list(steps), alpha=-rate / (1.0 - first**k))
        else:
            torch._foreach_addcdiv_(self._parameters, momentum, corrected, value=-rate / (1.0 - first**k))

    def _average(self) -> None:
        self._averaged += 1
        weight = average_weight(self._plan, self._averaged)
        now = [p.to(dtype) for p, dtype in zip(self._parameters, self._dtypes, strict=True)]
        torch._foreach_lerp_(self._parts["average"], now, weight)

    def released(self) -> Tensors:
        """Copies of what is to be published: the averages, or the weights where no step has been averaged (yet)."""
        shown = self._parts["average"] if self._averaged else self._parameters
        pairs = zip(self._names, shown, self._parameters, strict=True)
        return {name: value.detach().to(dtype=p.dtype, copy=True) for name, value, p in pairs}

    def state(self) -> dict[str, Tensors]:
        """The live tensors by part and name (copy them before the next step), and the counts as ``"scalars"``."""
        parts = {part: dict(zip(self._names, tensors, strict=True)) for part, tensors in self._parts.items()}
        return {**parts, SCALARS: _scalars(self._updates, self._averaged, self._noise)}

    def load(self, parts: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """Go on from ``state()`` (copied, to the parameters' devices); ModelError if it does not fit the plan."""
        owners = dict(zip(self._names, self._parameters, strict=True))
        check_parts(parts, initial_parts(self._plan, owners), "the state")
        self._parts = {
            part: [parts[part][k].detach().to(p.device, state_dtype(p), copy=True) for k, p in owners.items()]
            for part in optimizer_parts(self._plan)
        }
        counts = parts[SCALARS]
        self._updates, self._averaged = int(counts["updates"]), int(counts["averaged"])
        self._noise = float(counts["noise_variance"])


def noise_variance(noise_std_per_entry: float) -> float:
    """Of one entry of ĝ: what DP bias correction subtracts from the second moment."""
    return noise_std_per_entry**2


def is_averaged(plan: DPSGDPlan, t: int) -> bool:
    """Whether the iterate after step ``t`` enters the average: the last ⌈share · T⌉ of them, or all."""
    return plan.averaging == "ema" or t >= plan.steps - max(1, math.ceil(plan.averaging_share * plan.steps))


def average_weight(plan: DPSGDPlan, k: int) -> float:
    """Weight of the k-th averaged iterate against the average so far."""
    if plan.averaging == "tail":
        return 1.0 / k
    decay = max(0.0, 1.0 - 1.0 / max(plan.averaging_share * plan.steps, 1.0))
    return (1.0 - decay) / (1.0 - decay**k)  # normalised: weights d^age/Σ d^age, the start has none


def _scalars(updates: int, averaged: int, noise: float) -> Tensors:
    whole: Iterable[tuple[str, int]] = (("updates", updates), ("averaged", averaged))
    return {
        **{name: torch.tensor(value, dtype=torch.int64) for name, value in whole},
        "noise_variance": torch.tensor(noise, dtype=torch.float64),
    }
