"""Random adaptive sequences of questions, restarts and failures: no session passes its budget.

The model adds up what each answered (or failed) question was *asked* to cost, as exact fractions; a session may count a
little less (its noise is rounded up), never so little that the model passes the budget.
"""

from __future__ import annotations

import shutil
import tempfile
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from session_checks import ADD, DATA, MEDIAN, QUERIES, REPLACE

from dpml.errors import BudgetExceededError
from dpml.mechanisms import Count, FixedNoise, PrivateSession, PureBudget, Where, ZCDPBudget
from dpml.mechanisms.session import Budget
from dpml.mechanisms.session_ledger import FILE

COSTS = st.sampled_from([0.01, 0.05, 0.1, 0.25, 0.3, 1.0, 7.0]) | st.floats(1e-3, 2.0)
SLACK = Fraction(1) + Fraction(1, 10**11)  # the filters' own relative slack is 1e-12
LITTLE_LESS = Fraction(997, 1000)  # a Gaussian's noise is rounded up to whole steps, of which there are more than 1,000


class Broken:
    """A noise source that fails."""

    secret = False

    def normal(self, std: float, shape: Any) -> Any:
        raise RuntimeError("no entropy")

    def uniform(self, size: Any) -> Any:
        raise RuntimeError("no entropy")


class Sessions(RuleBasedStateMachine):
    """One folder, one budget; the machine asks, reopens, fails and tampers with torn lines."""

    budget: Budget
    name: str
    relation = ADD

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.asked = Fraction(0)
        self.limit = Fraction(getattr(self.budget, self.name))
        self.answers = 0
        self.last = 0.0
        self.session = self.opened()
        self.other = self.opened()

    def opened(self) -> PrivateSession:
        return PrivateSession(
            DATA, self.budget, neighboring_relation=self.relation, folder=self.folder, noise_source=FixedNoise(1)
        )

    @rule(
        amount=COSTS,
        query=st.sampled_from([*QUERIES, MEDIAN]),
        which=st.booleans(),
        adapt=st.booleans(),
    )
    def ask(self, amount: float, query: Any, which: bool, adapt: bool) -> None:
        """By either of two sessions on the folder; an adaptive analyst asks by what the last answer was."""
        if adapt:
            query = Count(Where("age", ">", min(100.0, max(0.0, self.last))))
        session = self.session if which else self.other
        before, size = session.spent, (self.folder / FILE).stat().st_size
        try:
            answer = session.ask(query, **{self.name: amount})
        except BudgetExceededError:
            assert session.spent == before, "a refused question costs nothing"
            assert (self.folder / FILE).stat().st_size == size
            assert self.asked + Fraction(amount) > self.limit * LITTLE_LESS, "refused though it would fit"
            return
        self.asked += Fraction(amount)
        self.answers += 1
        value = answer.value
        self.last = float(value) if isinstance(value, float) else 0.0

    @rule(amount=COSTS)
    def fail(self, amount: float) -> None:
        """The noise fails after the charge: it is counted."""
        real, self.session._noise = self.session._noise, Broken()
        try:
            self.session.ask(Count(Where("age", ">", 3)), **{self.name: amount})
        except RuntimeError:
            self.asked += Fraction(amount)
            self.answers += 1
        except BudgetExceededError:
            pass
        finally:
            self.session._noise = real

    @rule()
    def reopen(self) -> None:
        self.session = self.opened()

    @precondition(lambda self: self.answers > 0)
    @rule(length=st.integers(1, 40))
    def die_while_writing(self, length: int) -> None:
        """A line that was not finished: it was never used, and goes."""
        with (self.folder / FILE).open("ab") as file:
            file.write(b'{"charge":1,"hash":"0123456789abcdef0123456789'[:length])
        self.other = self.opened()

    @invariant()
    def within_the_budget(self) -> None:
        spent = Fraction(self.session.spent[self.name])
        assert spent <= self.limit * SLACK
        assert self.asked <= self.limit * SLACK * (1 / LITTLE_LESS)
        assert spent <= self.asked * SLACK
        assert spent >= self.asked * LITTLE_LESS, "what was answered is counted"
        assert self.session.spent == self.other.spent
        assert len(self.session.transcript) == self.answers

    def teardown(self) -> None:
        shutil.rmtree(self.folder)


class PureSessions(Sessions):
    budget = PureBudget(1.5)
    name = "epsilon"


class ConcentratedSessions(Sessions):
    budget = ZCDPBudget(1.5)
    name = "rho"
    relation = REPLACE


MACHINES = [PureSessions, ConcentratedSessions]
QUICK = settings(max_examples=12, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck))
LONG = settings(QUICK, max_examples=5_000, stateful_step_count=12)


@pytest.mark.parametrize("machine", MACHINES)
def test_no_sequence_of_questions_passes_the_budget(machine: Any) -> None:
    run_state_machine_as_test(machine, settings=QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
def test_ten_thousand_sequences(machine: Any) -> None:
    """5,000 sequences on each budget."""
    run_state_machine_as_test(machine, settings=LONG)
