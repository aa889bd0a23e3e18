"""The accountant against its targets and its peers, measured in one run: a Markdown table, correctness first.

    python experiments/benchmarks/accounting.py [--quick] [--slow] [--json FILE]

Every time is the median of several cold repeats (our caches are emptied before each), ours and the peer's interleaved.
Peers: dp-accounting's PLDAccountant with its defaults, and opacus' PRVAccountant where it answers the same question.
``--quick`` takes fewer rows, repeats and a shorter schedule; ``--slow`` also runs the peer that needs a minute.
The exit status is 1 when a correctness figure fails, else 0, whatever the times.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from fractions import Fraction
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from dpml import accounting as acc
from dpml.accounting import api, exact
from dpml.errors import UnsupportedEventError

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "tests" / "reference" / "composed_subsampled_gaussian.json"
DELTA = 1e-5
STRANGERS = ("torch", "hydra", "dp_accounting", "matplotlib")
QUICK_IDS = ("0001", "0042", "0084", "0178")


@dataclass(frozen=True)
class Figure:
    """One line of the table; ``met`` is None where there is no target, ``correctness`` decides the exit status."""

    name: str
    ours: str
    peer: str = "–"
    ratio: str = "–"
    target: str = "–"
    met: bool | None = None
    correctness: bool = False

    def line(self) -> str:
        """As a row of Markdown."""
        word = {True: "yes", False: "**no**", None: "–"}[self.met]
        return f"| {self.name} | {self.ours} | {self.peer} | {self.ratio} | {self.target} | {word} |"


def sampled(q: float, sigma: float, steps: int) -> acc.Event:
    """``steps`` Poisson-sampled Gaussians."""
    return acc.SelfComposed(acc.PoissonSampled(q, acc.Gaussian(sigma)), steps)


def peer_sampled(q: float, sigma: float, steps: int) -> Any:
    """The same for dp-accounting."""
    import dp_accounting

    gaussian = dp_accounting.GaussianDpEvent(sigma)
    one = dp_accounting.PoissonSampledDpEvent(q, gaussian) if q < 1 else gaussian
    return dp_accounting.SelfComposedDpEvent(one, steps)


def peer_epsilon(events: list[Any], delta: float, relation: str = acc.ADD_REMOVE) -> float:
    """ε of dp-accounting's PLDAccountant with its default grid."""
    import dp_accounting
    from dp_accounting.pld import pld_privacy_accountant

    kinds = dp_accounting.NeighboringRelation
    kind = kinds.REPLACE_ONE if relation == acc.REPLACE_ONE else kinds.ADD_OR_REMOVE_ONE
    accountant = pld_privacy_accountant.PLDAccountant(kind)
    return float(accountant.compose(dp_accounting.ComposedDpEvent(events)).get_epsilon(delta))


def peer_noise(epsilon: float, steps: int, tolerance: float, bracket: tuple[float, float] | None = None) -> float:
    """σ of dp-accounting's calibration at q = 0.01, its search begun with its default bracket or this one."""
    import dp_accounting
    from dp_accounting.pld import pld_privacy_accountant

    found = dp_accounting.calibrate_dp_mechanism(
        pld_privacy_accountant.PLDAccountant,
        lambda sigma: peer_sampled(0.01, sigma, steps),
        epsilon,
        DELTA,
        bracket_interval=dp_accounting.ExplicitBracketInterval(*bracket) if bracket else None,
        tol=tolerance,
    )
    return float(found)


def opacus_epsilon(history: list[tuple[float, float, int]], delta: float) -> float:
    """ε of opacus' PRVAccountant (stated error 0.01); ``history`` has (σ, q, steps)."""
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = list(history)
    return float(accountant.get_epsilon(delta))


def opacus_noise(epsilon: float, steps: int) -> float:
    """σ of opacus' calibration at q = 0.01, to 1e-4 of ε."""
    from opacus.accountants.utils import get_noise_multiplier

    return float(
        get_noise_multiplier(
            target_epsilon=epsilon,
            target_delta=DELTA,
            sample_rate=0.01,
            steps=steps,
            accountant="prv",
            epsilon_tolerance=1e-4,
        )
    )


def clear_caches() -> None:
    """Empties every cache of dpml.accounting, so that a repeat costs what a first call costs."""
    for name, module in list(sys.modules.items()):
        if name.startswith("dpml.accounting"):
            for thing in list(vars(module).values()):
                clear = getattr(thing, "cache_clear", None)
                if callable(clear):
                    clear()


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    """(value, seconds) of one cold call."""
    clear_caches()
    begin = time.perf_counter()
    value = function()
    return value, time.perf_counter() - begin


def race(ours: Callable[[], Any], peer: Callable[[], Any], repeats: int, peer_repeats: int) -> tuple[Any, ...]:
    """(our value, our median seconds, the peer's value, its median seconds), calls interleaved."""
    timed(ours)  # libraries and code pages; the caches are emptied again
    ours_seconds, peer_seconds, value, peer_value = [], [], None, None
    for index in range(repeats):
        value, seconds = timed(ours)
        ours_seconds.append(seconds)
        if index < peer_repeats:
            peer_value, seconds = timed(peer)
            peer_seconds.append(seconds)
    return value, statistics.median(ours_seconds), peer_value, statistics.median(peer_seconds)


def seconds_text(seconds: float) -> str:
    """Milliseconds below one second."""
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def number(text: str) -> float:
    """A decimal or a fraction as float."""
    return float(Fraction(text)) if "/" in text else float(text)


def table_rows(quick: bool) -> list[dict[str, Any]]:
    """The ε rows of the reference table."""
    rows = json.loads(TABLE.read_text(encoding="utf-8"))["rows"]
    rows = [row for row in rows if row["quantity"].startswith("epsilon")]
    return [row for row in rows if not quick or row["id"].endswith(QUICK_IDS)]


def row_parts(row: dict[str, Any]) -> list[tuple[float, float, int]]:
    """(q, σ, steps) of each segment of a row."""
    parts = row["inputs"].get("segments", [row["inputs"]])
    return [
        (number(part["sampling_probability"]), number(part["noise_multiplier"]), int(part["steps"])) for part in parts
    ]


def reference_deltas() -> list[Figure]:
    """δ of every δ row of the reference table, relative to the exact value."""
    found: list[float] = []
    for row in json.loads(TABLE.read_text(encoding="utf-8"))["rows"]:
        if row["quantity"] == "delta_add_remove":
            event = acc.Composed(tuple(sampled(*part) for part in row_parts(row)))
            found.append(acc.delta(event, number(row["inputs"]["epsilon"])) / number(row["value"]) - 1)
    return [
        Figure(
            f"δ(ε) over the exact δ, less 1 ({len(found)} rows)",
            f"{min(found):+.1e} … {max(found):+.1e}",
            target="in [−1e-9, 1e-8]",
            met=min(found) >= -1e-9 and max(found) <= 1e-8,
            correctness=True,
        )
    ]


def reference_rows(quick: bool) -> list[Figure]:
    """ε of every row of the reference table, ours and dp-accounting's, relative to the exact value."""
    ours: list[tuple[float, str]] = []
    peers: list[tuple[float, str]] = []
    below = peers_below = refused = 0
    for row in table_rows(quick=False):
        delta, exact_value = number(row["inputs"]["delta"]), number(row["value"])
        relation = acc.REPLACE_ONE if "replace_one" in row["quantity"] else acc.ADD_REMOVE
        allowed = float(row["rtol"]) * exact_value + float(row["atol"])
        event = acc.Composed(tuple(sampled(*part) for part in row_parts(row)))
        value = acc.epsilon(event, delta, neighboring_relation=relation)
        ours.append((value / exact_value - 1, row["id"][-4:]))
        below += value < exact_value - allowed
        if quick and not row["id"].endswith(QUICK_IDS):
            continue
        try:
            other = peer_epsilon([peer_sampled(*part) for part in row_parts(row)], delta, relation)
        except Exception:  # whatever a peer raises means: no answer
            refused += 1
            continue
        peers.append((other / exact_value - 1, row["id"][-4:]))
        peers_below += other < exact_value - allowed
    (least, least_at), (most, most_at) = min(ours), max(ours)
    (peer_least, peer_least_at), (peer_most, peer_most_at) = min(peers), max(peers)
    note = f"of {len(peers)}" + (f", {refused} refused" if refused else "")
    return [
        Figure(
            f"rows below the exact ε (of {len(ours)})",
            f"{below}; least {least:+.1e} (row {least_at})",
            f"{peers_below} {note}; least {peer_least:+.1e} (row {peer_least_at})",
            target="0 beyond the table's own tolerance (1e-9)",
            met=below == 0,
            correctness=True,
        ),
        Figure(
            "worst relative excess of ε in these rows",
            f"{most:+.1e} (row {most_at}); {sum(value > 1e-9 for value, _ in ours)} rows above 1e-9",
            f"{peer_most:+.1e} (row {peer_most_at})",
            target="1e-6 (correctness)",
            met=most <= 1e-6,
            correctness=True,
        ),
    ]


def calibration(quick: bool, repeats: int) -> list[Figure]:
    """σ for (3, 1e-5) at q = 0.01 in 2000 steps, and for ε = 0.01."""

    def ours(epsilon: float, steps: int) -> float:
        return acc.calibrate(lambda sigma: sampled(0.01, sigma, steps), epsilon=epsilon, delta=DELTA)

    # the peer gets our tolerance; with its default (1e-6) it takes about as long
    peer_repeats, peer_search = (1, (0.02, (0.9, 0.95))) if quick else (3, (3e-5, None))
    value, seconds, peer, peer_seconds = race(
        lambda: ours(3.0, 2000), lambda: peer_noise(3.0, 2000, *peer_search), repeats, peer_repeats
    )
    small, small_seconds, peer_small, peer_small_seconds = race(
        lambda: ours(0.01, 1000), lambda: peer_noise(0.01, 1000, 3e-3), repeats, peer_repeats
    )
    found = [
        Figure(
            "σ for ε = 3, q = 0.01, T = 2000",
            f"{value:.6f}",
            f"{peer:.6f}",
            target="0.9304 ± 1e-4",
            met=abs(value - 0.9304) <= 1e-4,
            correctness=True,
        ),
        speed("the same, time", seconds, peer_seconds, 25),
        Figure(
            "σ for ε = 0.01, q = 0.01, T = 1000",
            f"{small:.4f}",
            f"{peer_small:.4f}",
            f"{peer_small / small:.3f} × our σ",
            "≤ 77.14",
            small <= 77.14,
            correctness=True,
        ),
        speed("the same, time", small_seconds, peer_small_seconds, None),
    ]
    if not quick:
        timed(lambda: opacus_epsilon([(1.0, 0.01, 100)], DELTA))  # its imports
        noise, prv_seconds = timed(lambda: opacus_noise(3.0, 2000))
        found.append(speed(f"σ for ε = 3 against opacus PRV (σ = {noise:.4f})", seconds, prv_seconds, None))
    return found


def speed(name: str, ours: float, peer: float, target: float | None) -> Figure:
    """A figure of two times; ``target`` is how many times faster we should be."""
    return Figure(
        name,
        seconds_text(ours),
        seconds_text(peer),
        f"{peer / ours:.1f}×",
        f"≥ {target:g}×" if target else "–",
        peer / ours >= target if target else None,
    )


def one_epsilon(quick: bool, repeats: int) -> list[Figure]:
    """q = 0.01, σ = 1, T = 10000, δ = 1e-5 against the table's row."""
    expected = next(number(row["value"]) for row in table_rows(quick=False) if row["id"].endswith("-0001"))
    event = sampled(0.01, 1.0, 10_000)
    value, seconds, peer, peer_seconds = race(
        lambda: acc.epsilon(event, DELTA),
        lambda: peer_epsilon([peer_sampled(0.01, 1.0, 10_000)], DELTA),
        repeats,
        1 if quick else 5,
    )
    bounds = api.interval(event, DELTA)
    found = [
        Figure(
            "one ε (q = 0.01, σ = 1, T = 10000), relative error",
            f"{value / expected - 1:+.1e}",
            f"{peer / expected - 1:+.1e}",
            target="≤ 1e-8",
            met=abs(value / expected - 1) <= 1e-8,
            correctness=True,
        ),
        Figure(
            "the same, certified interval",
            f"width {bounds.width:.1e}",
            target="holds the exact value",
            met=bounds.low <= expected * (1 + 1e-10) and expected * (1 - 1e-10) <= bounds.high,
            correctness=True,
        ),
        speed("the same, time", seconds, peer_seconds, 15),
    ]
    if not quick:
        runs = [timed(lambda: opacus_epsilon([(1.0, 0.01, 10_000)], DELTA)) for _ in range(3)]
        name = f"the same against opacus PRV (error {runs[0][0] / expected - 1:+.1e})"
        found.append(speed(name, seconds, statistics.median(time for _, time in runs), None))
    return found


def schedule(quick: bool, repeats: int) -> list[Figure]:
    """Many distinct noise multipliers in one run."""
    sigmas = [0.8 + 0.02 * index for index in range(2 if quick else 50)]
    event = acc.Composed(tuple(sampled(0.01, sigma, 200) for sigma in sigmas))
    value, seconds, peer, peer_seconds = race(
        lambda: acc.epsilon(event, DELTA),
        lambda: peer_epsilon([peer_sampled(0.01, sigma, 200) for sigma in sigmas], DELTA),
        repeats,
        1 if quick else 3,
    )
    name = f"schedule of {len(sigmas)} σ × 200 steps"
    found = [
        Figure(
            name,
            f"ε = {value:.8f}",
            f"ε = {peer:.8f}",
            target="≤ peer",
            met=value <= peer,
            correctness=True,
        ),
        speed("the same, time", seconds, peer_seconds, None if quick else 30),
    ]
    if not quick:
        _, prv_seconds = timed(lambda: opacus_epsilon([(sigma, 0.01, 200) for sigma in sigmas], DELTA))
        found.append(speed("the same against opacus PRV", seconds, prv_seconds, None))
    return found


def per_epoch(repeats: int) -> list[Figure]:
    """100 points of a trajectory against one evaluation of its end, both cold."""
    events = [sampled(0.01, 1.0, 100 * (index + 1)) for index in range(100)]
    name = "trajectory of 100 points, from single evaluations"
    try:
        values, many, _, one = race(
            lambda: exact.epsilons(events, DELTA, acc.ADD_REMOVE),
            lambda: acc.epsilon(events[-1], DELTA),
            repeats,
            repeats,
        )
    except UnsupportedEventError as error:
        return [Figure(name, f"refused: {error}", target="≤ 1e-6", met=False, correctness=True)]
    singles = np.array([acc.epsilon(event, DELTA) for event in events])
    off = float(np.abs(np.asarray(values) / singles - 1).max())
    return [
        Figure(
            name,
            f"{off:.1e} relative",
            target="≤ 1e-6",
            met=off <= 1e-6,
            correctness=True,
        ),
        Figure(
            "the same, time against one evaluation",
            seconds_text(many),
            f"{seconds_text(one)} (ours, one point)",
            f"{many / one:.1f}×",
            "≤ 10×",
            many <= 10 * one,
        ),
    ]


def little_noise(slow: bool, repeats: int) -> list[Figure]:
    """σ = 0.05, T = 10, q = 0.01."""
    event = sampled(0.01, 0.05, 10)
    runs = [timed(lambda: acc.best(event, DELTA)) for _ in range(repeats)]
    (value, name), seconds = runs[0][0], statistics.median(seconds for _, seconds in runs)
    peer, ratio = "not run (--slow)", "–"
    if slow:
        other, peer_seconds = timed(lambda: peer_epsilon([peer_sampled(0.01, 0.05, 10)], DELTA))
        peer, ratio = f"{seconds_text(peer_seconds)} (ε = {other:.6f})", f"{peer_seconds / seconds:.1f}×"
    ours = f"{seconds_text(seconds)} (ε = {value:.6f} by {name})"
    return [Figure("σ = 0.05, T = 10, q = 0.01", ours, peer, ratio, "< 1 s", seconds < 1)]


def tiny_delta(quick: bool) -> list[Figure]:
    """ε(δ) for δ down to 1e-30 against :func:`reference_delta`."""
    event = sampled(0.01, 1.0, 1000)
    series = [acc.epsilon(event, 10.0**-power) for power in range(2, 31)]
    rising = all(0 < a < b < math.inf for a, b in pairwise(series))
    ends = []
    for power in (5, 30) if quick else (5, 10, 15, 20, 25, 30):
        delta = 10.0**-power
        epsilon = series[power - 2]
        at = reference_delta(0.01, 1.0, 1000, epsilon)
        ends.append((float(delta / at - 1), float(acc.delta(event, epsilon) / at - 1)))
    low = min(min(pair) for pair in ends)
    high = max(max(pair) for pair in ends)
    powers = (15,) if quick else (10, 15, 30)
    peers = [f"{peer_epsilon([peer_sampled(0.01, 1.0, 1000)], 10.0**-power):.4f} at 1e-{power}" for power in powers]
    return [
        Figure(
            "ε at δ = 1e-2, …, 1e-30 (q = 0.01, σ = 1, T = 1000)",
            f"finite and rising: {rising}; ε(1e-30) = {series[-1]:.8f}",
            ", ".join(peers),
            target="finite, rising",
            met=rising,
            correctness=True,
        ),
        Figure(
            "the same, δ over the 30-digit δ at that ε, less 1",
            f"{low:+.1e} … {high:+.1e}",
            target="in [0, 1e-8]",
            met=low >= 0 and high <= 1e-8,
            correctness=True,
        ),
    ]


def reference_delta(q: float, sigma: float, steps: int, epsilon: float, *, digits: int = 32) -> Any:
    """δ(ε) of ``steps`` Poisson-sampled Gaussians with one record more (P the mixture), to about ``digits`` digits.

    δ(ε) = (1/2πi) ∫ e^{−zε} M(z)^T/(z(z + 1)) dz on Re z = c > 0, M(z) = E_P[(P/Q)^z] = E_{u~N(0,1)}[r(u)^{z+1}] with
    r(u) = 1 − q + q e^{u/σ − 1/(2σ²)}.  Both integrals are trapezoid sums of analytic integrands; the step along the
    line is halved until the value stands.  Shares no code with dpml.  The phases r^{it} turn in fixed-point integers,
    which Python multiplies much faster than mpmath its complex numbers.  Returns an mpf.
    """
    import mpmath as mp

    order = chernoff_order(q, sigma, steps, epsilon)
    bits = math.ceil((digits + 20) * math.log2(10))
    with mp.workprec(bits):
        q, sigma, epsilon, c = mp.mpf(q), mp.mpf(sigma), mp.mpf(epsilon), mp.mpf(order)
        spacing = min(sigma, 1) / 8
        reach = mp.sqrt(2 * mp.log(10) * (digits + 10))
        first, last = math.floor(-reach / spacing), math.ceil(((c + 1) / sigma + reach) / spacing)
        nodes = [spacing * k for k in range(first, last + 1)]
        losses = [mp.log(1 - q + q * mp.exp(u / sigma - 1 / (2 * sigma**2))) for u in nodes]
        weights = [mp.exp((c + 1) * loss - u * u / 2) for loss, u in zip(losses, nodes, strict=True)]
        total = mp.fsum(weights)
        smallest = total * mp.mpf(10) ** (-digits - 10)
        kept = [(w / total, loss) for w, loss in zip(weights, losses, strict=True) if w > smallest]

        def fixed(values: list[Any]) -> tuple[np.ndarray, np.ndarray]:
            """Real and imaginary parts, times 2^bits."""
            scaled = [value * 2**bits for value in values]
            real = np.array([int(mp.nint(mp.re(value))) for value in scaled], dtype=object)
            return real, np.array([int(mp.nint(mp.im(value))) for value in scaled], dtype=object)

        def line(start: Any, step: Any) -> Any:
            """Sum over t = start, start + step, …, until the terms are too small to matter."""
            real, imaginary = fixed([w * mp.expj(start * loss) for w, loss in kept])
            cosine, sine = fixed([mp.expj(step * loss) for _, loss in kept])
            value, quiet, t = mp.mpf(0), 0, start
            while quiet < 8:
                moment = mp.mpc(int(real.sum()), int(imaginary.sum())) / 2**bits
                z = mp.mpc(c, t)
                term = mp.expj(-t * epsilon) * moment**steps / (z * (z + 1))
                value += mp.re(term) / (2 if t == 0 else 1)
                quiet = quiet + 1 if abs(term) < abs(value) * mp.mpf(10) ** (-digits - 8) else 0
                real, imaginary = (real * cosine - imaginary * sine) >> bits, (real * sine + imaginary * cosine) >> bits
                t += step
            return value

        step = 2 * mp.pi * c / (mp.log(10) * digits + 30)
        value = line(mp.mpf(0), step) * step
        for _ in range(8):
            finer = (value + line(step / 2, step) * step) / 2
            value, change, step = finer, abs(finer - value), step / 2
            if change <= abs(value) * mp.mpf(10) ** -digits:
                break
        moment = total * spacing / mp.sqrt(2 * mp.pi)
        return value / mp.pi * moment**steps * mp.exp(-c * epsilon)


def chernoff_order(q: float, sigma: float, steps: int, epsilon: float) -> float:
    """A c near the saddle point of M(c)^T e^{−cε}/(c(c + 1)), in floats: it only decides how fast the sum is."""
    found = []
    for c in 2.0 ** np.arange(-4, 9, 0.25):
        u = np.arange(-40.0, (c + 1) / sigma + 40.0, 0.05)
        loss = math.log(q) + u / sigma - 1 / (2 * sigma**2)
        if q < 1:
            loss = np.logaddexp(math.log1p(-q), loss)
        log_moment = np.logaddexp.reduce((c + 1) * loss - u * u / 2) + math.log(0.05 / math.sqrt(2 * math.pi))
        found.append((steps * log_moment - c * epsilon - math.log(c) - math.log1p(c), c))
    return float(min(found)[1])


def imports(repeats: int) -> list[Figure]:
    """Seconds to import dpml.accounting in a fresh process, and what came along."""

    def fresh(module: str) -> tuple[float, list[str]]:
        code = (
            f"import sys, time; b = time.perf_counter(); import {module}; s = time.perf_counter() - b; "
            f"print(s, *[m for m in {STRANGERS!r} if m in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
        seconds, *loaded = done.stdout.split()
        return float(seconds), loaded

    ours, peers = [], []
    for _ in range(repeats):
        ours.append(fresh("dpml.accounting"))
        peers.append(fresh("dp_accounting.pld.pld_privacy_accountant"))
    loaded = sorted({name for _, names in ours for name in names})
    seconds = statistics.median(time for time, _ in ours)
    peer = statistics.median(time for time, _ in peers)
    return [
        Figure(
            "import dpml.accounting, fresh process",
            seconds_text(seconds),
            f"{seconds_text(peer)} (dp-accounting's PLD)",
            f"{peer / seconds:.1f}×",
            "< 0.7 s",
            seconds < 0.7,
        ),
        Figure(
            f"which of {', '.join(STRANGERS)} it loads",
            ", ".join(loaded) or "none",
            target="none",
            met=not loaded,
            correctness=True,
        ),
    ]


def machine() -> dict[str, str]:
    """Where this was measured."""
    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text(encoding="utf-8").splitlines() if line.startswith("model name")]
        processor = names[0].partition(":")[2].strip() if names else processor
    packages = ("numpy", "scipy", "mpmath", "dp-accounting", "opacus")
    return {
        "processor": f"{processor}, {os.cpu_count()} cores",
        "threads": f"OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'unset')}",
        "load": ", ".join(f"{value:.1f}" for value in os.getloadavg()) if hasattr(os, "getloadavg") else "unknown",
        "system": platform.platform(),
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }


def main() -> int:
    """Print the table; 1 when a correctness figure fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rows and repeats")
    parser.add_argument("--slow", action="store_true", help="run the peer at sigma = 0.05 too (a minute)")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    arguments = parser.parse_args()
    quick, repeats = arguments.quick, 3 if arguments.quick else 9
    warnings.simplefilter("ignore")  # the peers' own
    parts: list[Callable[[], list[Figure]]] = [
        lambda: imports(1 if quick else repeats),
        lambda: calibration(quick, repeats),
        lambda: one_epsilon(quick, repeats),
        lambda: schedule(quick, repeats),
        lambda: per_epoch(repeats),
        lambda: little_noise(arguments.slow, 1 if quick else 3),
        lambda: tiny_delta(quick),
        lambda: reference_rows(quick),
        reference_deltas,
    ]
    print("| figure | ours | peer | ratio | target | met? |\n|---|---|---|---|---|---|", flush=True)
    peer_epsilon([peer_sampled(0.01, 1.0, 1)], DELTA)  # its imports are not its time
    figures: list[Figure] = []
    for part in parts:
        found = part()
        figures += found
        print("\n".join(figure.line() for figure in found), flush=True)
    where = machine()
    print("\n" + " · ".join(f"{key} {value}" for key, value in where.items()))
    failed = [figure.name for figure in figures if figure.correctness and not figure.met]
    if failed:
        print("\ncorrectness fails: " + "; ".join(failed))
    if arguments.json:
        content = {"figures": [asdict(figure) for figure in figures], "machine": where, "quick": quick}
        arguments.json.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
