"""Many callers, threads and processes, and kills: what is spent is never less than what was answered."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import noise_faults
import pytest
from session_checks import DATA

from dpml.errors import BudgetExceededError
from dpml.mechanisms import Count, PrivateSession, PureBudget

HEAD = """
import os, signal, sys, threading
from dpml.errors import BudgetExceededError
from dpml.mechanisms import Count, Mean, PrivateSession, PureBudget, session_ledger, query_plan
session = PrivateSession({"age": [1.0, 50.0, 90.0]}, PureBudget(1.0), folder=sys.argv[1])
query = Mean("age", (0, 100))
"""

CALLERS = """
outcomes = []
start = threading.Barrier(25)
def ask():
    start.wait()
    try:
        session.ask(query, epsilon=0.05)
        outcomes.append("answered")
    except BudgetExceededError:
        outcomes.append("refused")
threads = [threading.Thread(target=ask) for _ in range(25)]
print("ready", flush=True)
sys.stdin.readline()
for thread in threads: thread.start()
for thread in threads: thread.join()
print(*outcomes)
"""


def started(code: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HEAD + code, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def reopened(folder: Path) -> PrivateSession:
    return PrivateSession({"age": [1.0, 50.0, 90.0]}, PureBudget(1.0), folder=folder)


def test_a_hundred_callers_in_four_processes_never_overspend(tmp_path: Path) -> None:
    """Each asks for a twentieth of the budget: exactly 20 are answered."""
    processes = [started(CALLERS, tmp_path) for _ in range(4)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    outputs = []
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        outputs.append(process.communicate()[0])
        assert process.returncode == 0
    outcomes = " ".join(outputs).split()
    assert len(outcomes) == 100
    assert outcomes.count("answered") == 20
    session = reopened(tmp_path)
    assert session.spent["epsilon"] == pytest.approx(1.0, rel=1e-12)
    assert [exchange.answered for exchange in session.transcript] == [True] * 20


def test_a_hundred_threads_of_one_session_never_overspend() -> None:
    session = PrivateSession(DATA, PureBudget(1.0))
    outcomes: list[str] = []

    def ask() -> None:
        try:
            session.ask(Count(), epsilon=0.05)
            outcomes.append("answered")
        except BudgetExceededError:
            outcomes.append("refused")

    threads = [threading.Thread(target=ask) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["answered"] * 20 + ["refused"] * 80
    assert session.spent["epsilon"] == pytest.approx(1.0, rel=1e-12)


KILLED = {
    "before the charge is written": """
session_ledger.write_all = lambda handle, data: os.kill(os.getpid(), signal.SIGKILL)
""",
    "in the middle of the charge": """
def torn(handle, data):
    os.write(handle, data[: len(data) // 2])
    os.kill(os.getpid(), signal.SIGKILL)
session_ledger.write_all = torn
""",
    "after the charge, before the noise": """
query_plan.QueryPlan.release = lambda plan, data, noise: os.kill(os.getpid(), signal.SIGKILL)
""",
    "after the noise, before the answer": """
session_ledger.SessionLedger.answer = lambda ledger, number, value: os.kill(os.getpid(), signal.SIGKILL)
""",
}
ASK = """
session.ask(query, epsilon=0.4)
"""


@pytest.mark.parametrize("moment", KILLED)
def test_a_question_killed_at_any_moment_is_charged_if_noise_may_have_been_drawn(moment: str, tmp_path: Path) -> None:
    process = started(ASK + KILLED[moment] + ASK, tmp_path)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    charged = 0.8 if moment.startswith("after") else 0.4
    session = reopened(tmp_path)
    assert session.spent["epsilon"] == pytest.approx(charged, rel=1e-12)
    answered = [exchange.answered for exchange in session.transcript]
    assert answered == ([True, False] if moment.startswith("after") else [True])
    if charged == 0.8:
        with pytest.raises(BudgetExceededError):
            session.ask(Count(), epsilon=0.4)
    session.ask(Count(), epsilon=0.2)


LOOP = """
while True:
    session.ask(query, epsilon=0.001)
    print("answer", flush=True)
"""


@pytest.mark.parametrize("answers", [1, 7, 30])
def test_killed_while_it_answers(answers: int, tmp_path: Path) -> None:
    """At least what was seen from outside is charged, and at most one question more than was begun."""
    with started(LOOP, tmp_path) as process:
        assert process.stdout is not None
        for _ in range(answers):
            assert process.stdout.readline() == "answer\n"
        process.kill()
        seen = answers + process.stdout.read().count("answer")
    session = reopened(tmp_path)
    charges = len(session.transcript)
    assert seen <= charges <= seen + 1
    assert session.spent["epsilon"] == pytest.approx(0.001 * charges, rel=1e-9)


FORK_HEAD = """
import os, sys, threading, warnings
warnings.simplefilter("ignore")  # newer Pythons warn of a fork beside threads
from dpml.mechanisms import Count, PrivateSession, PureBudget
session = PrivateSession({"age": [1.0, 50.0, 90.0]}, PureBudget(1.0), folder=FOLDER)

def in_a_child(work):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = work()
        except BaseException as error:
            text = type(error).__name__
        os.write(writer, str(text).encode())
        os._exit(0)
    os.close(writer)
    return child, os.fdopen(reader)

def told(child, pipe):
    with pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text
"""

SHARED = """
session.ask(Count(), epsilon=0.25)
texts = [told(*in_a_child(lambda: session.ask(Count(), epsilon=0.25).value)) for _ in range(2)]
values = {float(text) for text in texts}
assert session.spent == {"epsilon": 0.75}, session.spent
values.add(session.ask(Count(), epsilon=0.25).value)
assert len(values) == 3, "noise used twice"
assert told(*in_a_child(lambda: session.ask(Count(), epsilon=0.25))) == "BudgetExceededError"
"""

IN_MEMORY = """
assert told(*in_a_child(lambda: session.ask(Count(), epsilon=0.25))) == "LedgerError"
assert session.spent == {"epsilon": 0.0}
"""

HELD = """
session.ask(Count(), epsilon=0.25)
inside, leave = threading.Event(), threading.Event()

def hold():
    with session._ledger._opened():
        session._ledger._lines.append({"half": "done"})
        inside.set()
        leave.wait()
        session._ledger._lines.pop()

thread = threading.Thread(target=hold)
thread.start()
inside.wait()
child = in_a_child(lambda: session.ask(Count(), epsilon=0.5).event)
leave.set()  # the parent lets go although the child has a copy of the locked handle
thread.join()
assert told(*child) == "Pure(epsilon=0.5)"
assert session.spent == {"epsilon": 0.75}, session.spent
"""


def run_forking(code: str, folder: object) -> None:
    done = noise_faults.run_alone(FORK_HEAD.replace("FOLDER", repr(folder)) + code)
    assert done.returncode == 0, done.stderr


def test_a_forked_child_shares_the_folder_and_has_noise_of_its_own(tmp_path: Path) -> None:
    run_forking(SHARED, str(tmp_path))


def test_a_forked_child_of_a_session_in_memory_is_refused() -> None:
    run_forking(IN_MEMORY, None)


def test_a_child_forked_while_a_thread_holds_the_lock_does_not_hang(tmp_path: Path) -> None:
    """The thread's lock and the half-done count are the parent's; the child counts anew from the file."""
    run_forking(HELD, str(tmp_path))
