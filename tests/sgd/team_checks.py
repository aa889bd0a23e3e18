"""Two processes that train together, and checks of what they must do; planted-bug tests run them on broken code."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
from scipy import stats
from sgd_checks import rows, small_plan
from team_worker import train

from dpml.sgd.team import Alone

FALSE_ALARM = 1e-6
WORKER = Path(__file__).with_name("team_worker.py")


class Pair:
    """Two processes in one gloo group, alive for many runs (a start costs seconds); a run that kills one ends both."""

    def __init__(self, folder):
        self._folder, self._starts, self.processes = folder, 0, []

    def _start(self):
        self.close()
        self._starts += 1
        command = [sys.executable, "-W", "error", str(WORKER)]
        store = str(self._folder / f"store{self._starts}")
        self.processes = [
            subprocess.Popen([*command, str(rank), store], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for rank in (0, 1)
        ]

    def pids(self):
        """Of processes that are ready for a run."""
        if not self.processes or any(process.poll() is not None for process in self.processes):
            self._start()
        return [process.pid for process in self.processes]

    def run(self, X, y, fault=None, **arguments):
        """``call`` of ``train``."""
        return self.call("train", fault, X=X, y=y, **arguments)

    def call(self, task, fault=None, **arguments):
        """What ``team_worker``'s task returns in process 0 and 1, or ``{"error": name, "message": text}``."""
        self.pids()
        for process in self.processes:
            pickle.dump((task, fault, arguments), process.stdin)
            process.stdin.flush()
        return [self._answer(process) for process in self.processes]

    @staticmethod
    def _answer(process):
        try:
            return pickle.load(process.stdout)
        except EOFError:
            return {"error": "killed", "message": f"exit status {process.wait()}"}

    def close(self):
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            process.wait(30)
            process.stdout.close()
        self.processes = []


def trained(pair, X, y, fault=None, **arguments):
    """Both answers of a run that must end well."""
    both = pair.run(X, y, fault, **arguments)
    for answer in both:
        if "error" in answer:  # no AssertionError: a fault that crashes a run has not been noticed by a check
            raise RuntimeError(f"{answer['error']}: {answer['message']}")
    return both


def alone(X, y, **arguments):
    """The same run in this process."""
    return train(0, X, y, team=Alone(), **arguments)


def zeros(n, width):
    return np.zeros((n, width)), np.zeros(n, dtype=np.int64)


def two_processes_give_the_weights_of_one(pair, fault=None, n=41, **plan):
    """With a repeatable source and next to no rounding: equal to 1e-9, and bit for bit between the processes."""
    X, y = rows(n=n) if n else (np.zeros((0, 3)), np.zeros(0, dtype=np.int64))
    one = alone(X, y, seed=3, fine=True, plan=plan)
    both = trained(pair, X, y, fault, seed=3, fine=True, plan=plan)
    for answer in both:
        np.testing.assert_allclose(answer["weights"], one["weights"], rtol=1e-9, atol=1e-9)
        for name in ("batch_size", "non_finite", "steps_run"):
            assert answer["notes"][name] == one["notes"][name]
        for name in ("clipped_share", "mean_norm"):
            np.testing.assert_allclose(answer["notes"][name], one["notes"][name], rtol=1e-9)
    assert both[0]["weights"].tobytes() == both[1]["weights"].tobytes()


def noise_has_the_planned_variance(pair, fault=None, n=40):
    """χ² test of Σ z²/(Cσ)² at a two-sided false-alarm rate of 1e-6, 20,000 draws of secret noise: 1.5 or half the
    variance moves the statistic by 50 of its standard deviations.  Records of zeros: the moves are noise alone."""
    plan = {"steps": 100, "learning_rate": 1.0, "noise_multiplier": 2.0, "checkpoint_every": 1}
    both = trained(pair, *zeros(n, 200), fault, plan=plan)
    path = np.stack([np.zeros(200)] + [s["parameters"]["weight"].numpy().ravel() for s in both[0]["states"]])
    drawn = np.diff(path, axis=0) * small_plan().expected_batch_size
    statistic = float((drawn**2).sum()) / (2.0 * small_plan().max_grad_norm) ** 2
    assert min(stats.chi2.cdf(statistic, drawn.size), stats.chi2.sf(statistic, drawn.size)) > FALSE_ALARM / 2


def noises_are_independent(pair, fault=None):
    """Correlation of the two processes' shares, and from step to step; z = r√N beyond 5 has probability 6e-7."""
    both = trained(pair, *zeros(40, 200), fault, plan={"steps": 50, "checkpoint_every": 50})
    first, second = (answer["shares"] for answer in both)
    assert first.shape == second.shape == (50, 200)
    for a, b in ((first, second), (first[:-1], second[1:]), (first[1:], second[:-1]), (first[:-1], first[1:])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) * math.sqrt(a.size) < 5


def the_normaliser_is_public(pair, fault=None):
    """Records of zeros, rate 1: the weights are −(sum of all noise)/10 whatever was drawn and whoever drew it."""
    for n, seed in ((20, 1), (81, 2)):
        plan = {"learning_rate": 1.0}
        both = trained(pair, *zeros(n, 3), fault, seed=seed, plan=plan)
        total = sum(answer["shares"].sum(axis=0) for answer in both)
        for answer in both:
            np.testing.assert_allclose(answer["weights"], -total / 10, rtol=1e-9)


def only_process_0_charges(pair, fault=None):
    both = trained(pair, *rows(), fault)
    assert both[0]["charges"] == [5, 5, 2]
    assert both[1]["charges"] == []
    assert len(both[0]["states"]) == 3
    assert both[1]["states"] == []


def nothing_is_drawn_before_the_charge_is_on_disk(pair, fault=None):
    """Both processes read the machine's monotonic clock; a charge takes 0.4 s here."""
    both = trained(pair, *rows(), fault, slow_charge=0.4, plan={"steps": 1})
    for answer in both:
        assert answer["first_draw"] >= both[0]["charged_at"][0]


def a_lost_process_stops_the_other_before_it_draws(pair, fault=None):
    """Process 1 fails after step 7; the coins and noise of seven steps are all that process 0 has drawn."""
    first, second = pair.run(*rows(), fault, seed=3, fail=(1, 7))
    assert second["error"] == "MemoryError"
    assert first["error"] == "TeamError"
    assert first["drawn"] == [7, 7]
    assert "before a step, of which nothing was drawn" in first["message"]


def roundings_of_all_processes_are_allowed_for(pair, fault=None):
    """A process releases multiples of g with W g √p ≤ 2⁻¹¹ C; with the grid of one process g is twice as coarse.

    Sums of noise with a spread of 100,000 g: all even multiples of g by chance has probability 2^-600."""
    both = trained(pair, *rows(), fault, plan={"steps": 100, "checkpoint_every": 100})
    fine = 2.0 ** math.floor(math.log2(2.0**-11 * small_plan().max_grad_norm / (2 * math.sqrt(3))))
    steps = np.concatenate([answer["shares"].ravel() for answer in both]) / fine
    assert (steps == np.round(steps)).all()
    assert (steps % 2 == 1).any()


def other_records_are_refused(pair, fault=None):
    """A record that both processes take for their own would count twice: the tables are compared, nothing is drawn."""
    first, second = pair.call("private_run", fault, differing="records")
    assert second.get("error") == "DataError"
    assert "process 1 does not hold the very same records as process 0" in second["message"]
    assert first.get("error") == "TeamError"
    assert "process 1 failed (DataError, see its own message)" in first["message"]
