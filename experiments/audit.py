"""``python experiments/audit.py``: attacks on DP-SGD, correct and with planted bugs, as tables.

1. A correct run at ε = 1, 4 and 10 (δ = 1e-5): the lower bound of two-world auditing, white-box, with and without the
   Gaussian assumption, and of one-run auditing, beside the accountant's ε.
2. Planted bugs of the engine, found by the audit alone at 99.9 % confidence.
3. The same for other methods: output and objective perturbation, gradient descent, AdaSSP, the Laplace mechanism; and
   what audits of this kind cannot see.
4. What else was tried: planted bugs, mutants, fuzzed inputs, faults survived, each with the command that repeats it
   (``--tried`` alone prints only this; ``--fuzz`` searches anew before).

Noise and coins are secret, so no two runs of this script give the same numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

from dpml.audit import AuditResult
from dpml.audit.__main__ import Finding, Settings, run_audit
from dpml.results import dumps

TESTS = Path(__file__).resolve().parents[1] / "tests"
COUNTS = Path(__file__).with_name("results") / "fuzz_counts.json"
UNKNOWN = "not run here yet"
DELTA, BUG_DELTA = 1e-5, 1e-3  # the larger one needs fewer runs

UNSEEN = (
    "noise or coins from a known or repeated seed (an attacker who knows it finds everything; this one does not)",
    "a batch normaliser or clipping norm taken from the data (the canaries do not move it)",
    "records that mix in the model (every canary has a coordinate of its own)",
    "steps that are run and not charged (the audit computes the claim from the plan, not from a ledger)",
    "what else leaves the process: files, messages, times",
)


class Patches:
    """``setattr`` that is undone at the end of a ``with``."""

    def __enter__(self) -> Patches:
        self._made: list[mock._patch] = []
        return self

    def setattr(self, target: object, name: str, value: object) -> None:
        patch = mock.patch.object(target, name, value)
        patch.start()
        self._made.append(patch)

    def __exit__(self, *_: object) -> None:
        for patch in reversed(self._made):
            patch.stop()


def correct_rows(runs: int) -> list[tuple[str, float, Finding]]:
    """(words, share of ε that is wanted, what was found) of a correct engine."""
    rows = []
    for epsilon in (1.0, 4.0, 10.0):
        for words, wanted, settings in (
            (f"two worlds, {runs:,} runs each", 0.5, Settings(runs=2 * runs)),
            (f"two worlds, {runs // 2:,} runs each", 0.0, Settings(runs=runs)),
            (f"two worlds, {5 * runs:,} runs each", 0.5, Settings(runs=min(10 * runs, 2**20))),
            (f"the same, {runs:,}, Gaussian ASSUMED", 0.8, Settings(runs=2 * runs, analysis="gaussian")),
        ):
            rows.append((words, wanted, run_audit(_with(settings, epsilon))))
    one = Settings(game="one_run", canaries=1000, parameters=50_000)
    rows.append(("one run, 1,000 canaries, p = 50,000", 0.25, run_audit(_with(one, 4.0))))
    rows.append(("the same, dense canaries", 0.25, run_audit(_with(one, 4.0, canary="random"))))
    rows.append(("the same, f-DP analysis", 0.25, run_audit(_with(one, 4.0, analysis="f_dp"))))
    rows.append(("the same, Gaussian ASSUMED", 0.25, run_audit(_with(one, 4.0, analysis="gaussian"))))
    return rows


def _with(settings: Settings, epsilon: float, **changes: str) -> Settings:
    from dataclasses import replace

    return replace(settings, epsilon=epsilon, delta=DELTA, **changes)  # type: ignore[arg-type]


def bug_rows(runs: int) -> list[tuple[str, Finding]]:
    """(the bug, what was found) at 99.9 % confidence."""
    sys.path.insert(0, str(TESTS))
    from engine_faults import ENGINE_BUGS

    rows = []
    for bug, arguments, words in ENGINE_BUGS:
        with Patches() as patch:
            bug(patch)
            rows.append((words, run_audit(Settings(runs=runs, delta=BUG_DELTA, confidence=0.999, **arguments))))
    return rows


def run_rows() -> list[tuple[str, int, AuditResult]]:
    """(the bug, runs, what was found) of methods that train once, at 99.9 % confidence; the claim is ε = 1."""
    sys.path.insert(0, str(TESTS))
    from run_faults import RUN_BUGS, audited

    rows = []
    for bug, case, runs, words in RUN_BUGS:
        with Patches() as patch:
            bug(patch)
            rows.append((words, runs, audited(case, runs)))
    return rows


def tried(counts: Path) -> list[tuple[str, str, str]]:
    """(what, how much, the command that repeats it): from what these commands left, and the table of planted bugs."""
    listed = printed_by("-m", "tests.planted_bugs.table")
    score = [line for line in printed_by("experiments/mutants.py", "--report") if line.startswith("all: ")]
    rows = [
        ("in the table", next(line for line in listed if " planted bugs: " in line), "-m tests.planted_bugs.table"),
        ("mutants", score[-1].removeprefix("all: ") if score else UNKNOWN, "experiments/mutants.py"),
    ]
    found = json.loads(counts.read_text("utf-8")) if counts.is_file() else {}
    fuzz = f"{found['inputs']:,} inputs tried in {found['searches']} searches" if found else UNKNOWN
    faults = f"{found['disk']:,} failures of the disk, {found['kills']:,} kills" if found else UNKNOWN
    failed = f"; tests that failed: {found['failed']}" if found else ""
    command = found.get("command", "-m pytest -m slow tests/fuzz")
    rows.append(("fuzz", fuzz + failed, command))
    rows.append(("faults survived", faults + failed, command))
    return rows


def printed_by(*command: str) -> list[str]:
    """Lines of standard output."""
    done = subprocess.run([sys.executable, *command], cwd=TESTS.parent, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


def print_tried(counts: Path) -> None:
    print("\nWhat else was tried, by the last run of each command:")
    for what, found, command in tried(counts):
        print(f"  {what}: {found}\n      again: python {command}")


def fuzz_anew(counts: Path) -> None:
    """The nightly searches, with their own output; the counts go to ``counts``."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "slow", "tests/fuzz"]
    subprocess.run(
        command, cwd=TESTS.parent, env={**os.environ, "DPML_FUZZ_COUNTS": str(counts.absolute())}, check=False
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; 0 when all that is wanted was reached."""
    parser = argparse.ArgumentParser(prog="python experiments/audit.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=100_000, help="two-world runs in each world (default 100000)")
    parser.add_argument("--bug-runs", type=int, default=200_000, help="of each planted bug, both worlds (200000)")
    parser.add_argument("--json", type=Path, help="write everything to this file too")
    parser.add_argument("--tried", action="store_true", help="only the last table: what else was tried")
    parser.add_argument("--fuzz", action="store_true", help="the nightly fuzz first (half an hour)")
    parser.add_argument("--counts", type=Path, default=COUNTS, help="what the nightly fuzz counted")
    options = parser.parse_args(arguments)
    if options.fuzz:
        fuzz_anew(options.counts)
    if options.tried:
        print_tried(options.counts)
        return 0
    started = time.perf_counter()
    good = True
    print(f"A correct DP-SGD run, delta = {DELTA:g}, white-box, 95 % confidence\n")
    print(f"{'eps_upper':>9} {'eps_lower':>9} {'share':>6} {'wanted':>6}  attack")
    correct = correct_rows(options.runs)
    for words, wanted, found in correct:
        lower, upper = found.result.epsilon_lower, found.epsilon_upper
        reached = wanted <= lower / upper <= 1
        good = good and reached
        mark = "" if reached else "  ABOVE THE CLAIM" if lower > upper else "  below what is wanted"
        print(f"{upper:9.4f} {lower:9.4f} {lower / upper:6.2f} {wanted:6.2f}  {words}{mark}")
    print(
        f"\nPlanted bugs, two worlds, {options.bug_runs // 2:,} runs each, delta = {BUG_DELTA:g}, 99.9 % confidence\n"
    )
    print(f"{'claimed':>9} {'eps_lower':>9} {'found':>6}  bug (score)")
    bugs = bug_rows(options.bug_runs)
    for words, found in bugs:
        flagged = found.result.exceeds(found.epsilon_upper)
        good = good and flagged
        print(
            f"{found.epsilon_upper:9.4f} {found.result.epsilon_lower:9.4f} {'yes' if flagged else 'NO':>6}  "
            f"{words} ({found.score})"
        )
    print("\nPlanted bugs of other methods, two worlds, released models only, claim epsilon = 1, 99.9 % confidence\n")
    print(f"{'runs':>9} {'eps_lower':>9} {'found':>6}  bug")
    others = run_rows()
    for words, runs, result in others:
        good = good and result.exceeds(1.0)
        print(f"{runs:9,} {result.epsilon_lower:9.4f} {'yes' if result.exceeds(1.0) else 'NO':>6}  {words}")
    print("\nWhat such audits cannot see:")
    for line in UNSEEN:
        print(f"  - {line}")
    print_tried(options.counts)
    print(f"\n{time.perf_counter() - started:.0f} s")
    if options.json:
        options.json.write_text(
            dumps(
                {
                    "correct": [{"attack": words, "wanted": wanted, **f.to_dict()} for words, wanted, f in correct],
                    "bugs": [{"bug": words, **f.to_dict()} for words, f in bugs],
                    "others": [{"bug": words, "runs": runs, **f.to_dict()} for words, runs, f in others],
                    "unseen": UNSEEN,
                }
            ),
            "utf-8",
        )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
