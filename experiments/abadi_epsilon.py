"""The ε of Abadi et al. 2016 ("Deep learning with differential privacy") beside ours: accounting alone, in seconds.

    python experiments/abadi_epsilon.py [--quick] [--json FILE]

Part 1, the paper's example: Poisson rate q = 0.01, noise multiplier σ = 4, δ = 1e-5, T = 10,000 steps (100 epochs).
It states 1.26 by the moments accountant and 9.34 by strong composition.  Both are computed again as they were then,
and the same event is given to our accountants (add_remove, as in the paper).

Part 2, the paper's three MNIST runs: lots of 600 of 60,000 records, σ = 8, 4, 2 for ε = 0.5, 2, 8.  The number of
epochs that each budget pays for, by the accountant of then and by ours.

Only figures that are certain stand here as the paper's.  Left out: other points of its figures, the epochs of its MNIST
runs, the noise of its private projection (so part 2 leaves the projection out and its epochs are upper limits), and
CIFAR-10.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from private_erm_table import machine
from scipy.optimize import minimize_scalar

from dpml import accounting as acc
from dpml.accounting.conversions import rdp_to_epsilon

RESULTS = Path(__file__).resolve().parent / "results"
DELTA = 1e-5
MOMENTS = np.arange(2.0, 34.0)  # λ = 1 to 32 of the paper is the Rényi order λ + 1


@dataclass(frozen=True)
class Setting:
    """``epochs / rate`` steps of the sub-sampled Gaussian."""

    rate: float
    noise_multiplier: float
    epochs: int

    @property
    def steps(self) -> int:
        """T = E/q."""
        return round(self.epochs / self.rate)

    @property
    def event(self) -> acc.Event:
        """What DP-SGD releases."""
        return sampled(self.rate, self.noise_multiplier, self.steps)


@dataclass(frozen=True)
class Row:
    """One ε: as published, and computed here."""

    accountant: str
    paper: float
    ours: float
    why: str

    @property
    def difference(self) -> float:
        """Ours less the paper's."""
        return self.ours - self.paper


@dataclass(frozen=True)
class Level:
    """Epochs that a published budget pays for, whole steps counted."""

    noise_multiplier: float
    epsilon: float
    moments: float
    rdp: float
    exact: float


EXAMPLE = Setting(0.01, 4.0, 100)
PAPER = {"moments": 1.26, "strong": 9.34}
LEVELS = ((8.0, 0.5), (4.0, 2.0), (2.0, 8.0))  # σ and ε of the MNIST runs, q = 600/60,000
MNIST_RATE = 0.01


def sampled(rate: float, noise_multiplier: float, steps: int) -> acc.Event:
    """``steps`` Poisson-sampled Gaussians."""
    return acc.SelfComposed(acc.PoissonSampled(rate, acc.Gaussian(noise_multiplier)), steps)


def moments_epsilon(event: acc.Event, delta: float) -> float:
    """ε of the moments accountant: min over λ = 1, …, 32 of (α(λ) + ln(1/δ))/λ, with α(λ) = λ · RDP(λ + 1).

    Abadi et al. 2016, Theorem 2, tail bound; integer moments as in their experiments.
    """
    return rdp_to_epsilon(MOMENTS, acc.rdp(event, MOMENTS), delta, form="simple")


def step_epsilon(noise_multiplier: float, delta: float) -> float:
    """√(2 ln(1.25/δ))/σ, the classical statement about one Gaussian (Dwork & Roth 2014, Theorem A.1; ε < 1 there)."""
    return math.sqrt(2.0 * math.log(1.25 / delta)) / noise_multiplier


def split(total: Callable[[float], float]) -> float:
    """The least ``total`` over the share of δ that the steps' own δ take."""
    return float(minimize_scalar(total, bounds=(1e-6, 1 - 1e-6), method="bounded").fun)


def strong_as_published(setting: Setting, delta: float) -> float:
    """Strong composition as it gives the paper's 9.34: ε₁ = q ε₀ a step, √(2T ln(1/δ′)) ε₁ + T ε₁².

    Dwork, Rothblum & Vadhan 2010, Theorem III.3, with e^{ε₁} − 1 ≈ ε₁.  No proof covers ε₁ = q ε₀ with this constant:
    sampling gives ln(1 + q(e^{ε₀} − 1)), and ε₀ = 1.46 here.  So this is a figure of the paper, not a guarantee.
    """

    def total(share: float) -> float:
        one = setting.rate * step_epsilon(setting.noise_multiplier, share * delta / (setting.steps * setting.rate))
        return math.sqrt(2.0 * setting.steps * math.log(1.0 / ((1.0 - share) * delta))) * one + setting.steps * one**2

    return split(total)


def strong_sound(setting: Setting, delta: float) -> float:
    """Strong composition with what is proved: one step is (ln(1 + q(e^{ε₀} − 1)), q δ₀)-DP, ε₀ exact for the Gaussian.

    The steps are composed by our accountant ``advanced`` (Kairouz, Oh & Viswanath 2015).
    """

    def total(share: float) -> float:
        own = share * delta / setting.steps
        gaussian = acc.epsilon(acc.Gaussian(setting.noise_multiplier), own / setting.rate, accountant="exact")
        one = acc.EpsilonDelta(math.log1p(setting.rate * math.expm1(gaussian)), own)
        return acc.epsilon(acc.SelfComposed(one, setting.steps), delta, accountant="advanced")

    return split(total)


def rows(setting: Setting = EXAMPLE, delta: float = DELTA) -> list[Row]:
    """Part 1."""
    event = setting.event
    return [
        Row(
            "strong composition, as published",
            PAPER["strong"],
            strong_as_published(setting, delta),
            "agrees to the paper's rounding if amplification is read as q ε₀, which no theorem says",
        ),
        Row(
            "strong composition, sound",
            PAPER["strong"],
            strong_sound(setting, delta),
            "amplification is ln(1 + q(e^ε₀ − 1)): each step costs more than q ε₀",
        ),
        Row(
            "moments accountant, λ ≤ 32",
            PAPER["moments"],
            moments_epsilon(event, delta),
            "the same to the paper's rounding",
        ),
        Row(
            "ours, rdp",
            PAPER["moments"],
            acc.epsilon(event, delta, accountant="rdp"),
            "same moments, real orders, conversion of Canonne, Kamath & Steinke 2020",
        ),
        Row(
            "ours, exact",
            PAPER["moments"],
            acc.epsilon(event, delta, accountant="exact"),
            "no moments: the smallest true ε, to 1e-9",
        ),
    ]


def most_steps(cost: Callable[[int], float], epsilon: float) -> int:
    """Largest T with ``cost(T)`` ≤ ε; cost rises with T."""
    low, high = 0, 1
    while cost(high) <= epsilon:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if cost(middle) <= epsilon else (low, middle)
    return low


def level(noise_multiplier: float, epsilon: float, delta: float = DELTA) -> Level:
    """Part 2: one MNIST run."""
    one = acc.rdp(sampled(MNIST_RATE, noise_multiplier, 1), MOMENTS)

    def ours(accountant: str) -> float:
        steps = acc.calibrate_steps(
            lambda steps: sampled(MNIST_RATE, noise_multiplier, steps),
            epsilon=epsilon,
            delta=delta,
            accountant=accountant,
        )
        return steps * MNIST_RATE

    moments = most_steps(lambda steps: rdp_to_epsilon(MOMENTS, steps * one, delta, form="simple"), epsilon)
    return Level(noise_multiplier, epsilon, moments * MNIST_RATE, ours("rdp"), ours("exact"))


def example_table(found: Sequence[Row]) -> str:
    """Part 1 as Markdown."""
    text = ["| accountant | paper | here | difference | why |", "|---|---|---|---|---|"]
    for row in found:
        text.append(f"| {row.accountant} | {row.paper:.2f} | {row.ours:.4f} | {row.difference:+.3f} | {row.why} |")
    return "\n".join(text)


def level_table(found: Sequence[Level]) -> str:
    """Part 2 as Markdown."""
    text = [
        "| σ | paper's ε | epochs, moments accountant | epochs, ours (rdp) | epochs, ours (exact) | exact ÷ moments |",
        "|---|---|---|---|---|---|",
    ]
    text += [
        f"| {one.noise_multiplier:g} | {one.epsilon:g} | {one.moments:.1f} | {one.rdp:.1f} | {one.exact:.1f} "
        f"| {one.exact / one.moments:.2f} |"
        for one in found
    ]
    return "\n".join(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Print both tables; 1 when a recomputed figure of the paper is off by more than its rounding."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one MNIST level, and no JSON unless --json names a file")
    parser.add_argument("--json", type=Path, help="default experiments/results/abadi_epsilon.json")
    given = parser.parse_args(argv)
    found = rows()
    print(f"## Poisson rate {EXAMPLE.rate:g}, σ = {EXAMPLE.noise_multiplier:g}, δ = {DELTA:g}, T = {EXAMPLE.steps:,}\n")
    print(example_table(found))
    levels = [level(*one) for one in (LEVELS[1:2] if given.quick else LEVELS)]
    print("\n## MNIST: epochs that the published budget pays for (lots of 600 of 60,000, δ = 1e-5)\n")
    print(level_table(levels))
    print("\nThe paper's private projection is not in these epochs; the paper's own epochs are not quoted here.")
    target = given.json or (None if given.quick else RESULTS / "abadi_epsilon.json")
    if target is not None:
        content = {
            "setting": {**asdict(EXAMPLE), "steps": EXAMPLE.steps, "delta": DELTA, "relation": "add_remove"},
            "rows": [{**asdict(row), "difference": row.difference} for row in found],
            "mnist": [asdict(one) for one in levels],
            "machine": machine(),
        }
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    again = {"moments": found[2], "strong": found[0]}
    off = [name for name, row in again.items() if abs(row.ours - PAPER[name]) > 0.005]
    if off:
        print("\nnot reproduced: " + ", ".join(off))
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(main())
