"""Two processes that train together: the run of one process, secret noise of each; a lost process stops the other."""

from __future__ import annotations

import math

import numpy as np
import pytest
import team_checks as checks
import torch
from sgd_checks import rows, small_plan
from torch import nn

from dpml import processes
from dpml.errors import ConfigError, DataError, DpmlError, TeamError
from dpml.mechanisms import FixedNoise, Grid, SecretNoise
from dpml.sgd import poisson_indices, team
from dpml.sgd.batches import StoredRows, as_rows
from dpml.sgd.team import Alone, Processes, merged_notes, noise_share


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    two = checks.Pair(tmp_path_factory.mktemp("pair"))
    yield two
    two.close()


@pytest.mark.parametrize("n", [0, 1, 2, 41])
def test_two_processes_give_the_weights_of_one(pair, n):
    checks.two_processes_give_the_weights_of_one(pair, n=n)


@pytest.mark.parametrize(
    "plan",
    [
        {"clipping": "adaptive", "count_noise": 2.0},
        {"clipping": "automatic", "optimizer": "adam", "sample_rate": 1.0, "micro_batch_size": 3},
        {"momentum": 0.9, "averaging": "tail", "sample_rate": 0.01},
    ],
    ids=["adaptive", "adam", "mostly empty batches"],
)
def test_two_processes_give_the_weights_of_one_with(pair, plan):
    checks.two_processes_give_the_weights_of_one(pair, **plan)


def test_all_processes_use_the_same_clipping_norm_next(pair):
    plan = {"clipping": "adaptive", "count_noise": 2.0, "checkpoint_every": 1}
    X, y = rows()
    one = checks.alone(X, y, seed=3, plan=plan)
    both = checks.trained(pair, X, y, seed=3, plan=plan)
    clips = [state["clip"] for state in both[0]["states"]]
    np.testing.assert_allclose(clips, [state["clip"] for state in one["states"]], rtol=2e-3)
    assert len(set(clips)) == 12


def test_on_its_grid_two_processes_are_one_up_to_roundings(pair):
    """A step's sums differ by at most W roundings of sum and noise each, as one process's: (2W + 2)/2 · g √p.

    Later steps also see other weights: their clipped gradients are Lipschitz, with moves that stay near those of one.
    """
    X, y = rows()
    plan = {"steps": 1}
    one, both = checks.alone(X, y, seed=3, plan=plan), checks.trained(pair, X, y, seed=3, plan=plan)
    grid = Grid(small_plan().max_grad_norm, 3, sums=2)
    apart = np.linalg.norm(one["weights"] - both[0]["weights"])
    assert 0.0 < apart <= 3 * 2 * grid.spacing * math.sqrt(3) * 0.1 / 10
    shares = np.array([answer["shares"][0] for answer in both]) / grid.spacing
    np.testing.assert_array_equal(shares, np.round(shares))
    assert Grid(0.5, 3).spacing >= 2 * grid.spacing


@pytest.mark.parametrize("n", [0, 1, 40], ids=["no record", "one process without a record", "both with records"])
def test_the_noise_adds_up_to_the_planned_variance(pair, n):
    checks.noise_has_the_planned_variance(pair, n=n)


def test_the_noises_are_independent(pair):
    checks.noises_are_independent(pair)


def test_the_normaliser_is_public(pair):
    checks.the_normaliser_is_public(pair)


def test_only_process_0_charges_and_saves(pair):
    checks.only_process_0_charges(pair)


def test_nothing_is_drawn_before_the_charge_is_on_disk(pair):
    checks.nothing_is_drawn_before_the_charge_is_on_disk(pair)


def test_a_process_that_fails_stops_the_other_before_it_draws(pair):
    checks.a_lost_process_stops_the_other_before_it_draws(pair)
    first, second = pair.run(*rows(), seed=3, fail=(0, 7))
    assert (first["error"], second["error"]) == ("MemoryError", "TeamError")
    assert "process 0 failed (MemoryError" in second["message"]
    assert second["drawn"] == [7, 7]
    checks.two_processes_give_the_weights_of_one(pair)  # and the next run is as good as the first


def test_a_process_that_is_gone_before_a_charge_costs_nothing(pair):
    """Process 1 fails after step 5, at the end of the first charge: the second is not made."""
    first, second = pair.run(*rows(), seed=3, fail=(1, 5))
    assert second["error"] == "MemoryError"
    assert first["error"] == "TeamError"
    assert first["charges"] == [5]


def test_secret_coins_draw_each_record_at_the_planned_rate(pair):
    """41 records, 400 steps at q = 1/4: the number drawn is binomial; z beyond 4.9 has probability 1e-6."""
    X, y = rows(n=41)
    both = checks.trained(pair, X, y, plan={"steps": 400, "checkpoint_every": 400})
    drawn = np.array(both[0]["notes"]["batch_size"])
    assert abs(drawn.sum() - 400 * 41 / 4) / math.sqrt(400 * 41 * 3 / 16) < 4.9
    assert both[0]["weights"].tobytes() == both[1]["weights"].tobytes()
    assert both[0]["notes"] == both[1]["notes"]


def test_a_run_goes_on_from_the_leader_s_state(pair):
    X, y = rows()
    whole = checks.trained(pair, X, y, seed=3, fine=True)
    start = {**whole[0]["states"][0], "step": 10}  # killed after the second charge, before its checkpoint
    one = checks.alone(X, y, seed=4, fine=True, start=start)
    both = checks.trained(pair, X, y, seed=4, fine=True, start=start)
    assert both[0]["charges"] == [2]
    assert both[1]["notes"]["steps_run"] == 2
    for answer in both:
        np.testing.assert_allclose(answer["weights"], one["weights"], rtol=1e-9)


@pytest.mark.parametrize(
    ("differing", "what"),
    [("n", "the number of records"), ("plan", "the plan"), ("source", "the kind of noise source")],
)
def test_processes_that_differ_are_refused_before_anything_is_charged(pair, differing, what):
    for answer in pair.run(*rows(), seed=3, differing=differing):
        assert answer["error"] == "Disagreement"
        assert f"differ in {what}; nothing more was drawn" in answer["message"]
        assert answer["drawn"] in ([0, 0], None)


def test_weights_that_drift_apart_are_found(pair):
    for answer in pair.run(*rows(), seed=3, spoil=True):
        assert answer["error"] == "Disagreement"
        assert "the trained weights" in answer["message"]


def test_a_sample_of_fixed_size_is_refused_by_name(pair):
    answers = pair.run(*rows(), plan={"sampling": "fixed_size"})
    refused = [answer for answer in answers if answer["error"] == "ConfigError"]
    assert refused  # the other may be told by it, or find it gone
    assert {answer["error"] for answer in answers} <= {"ConfigError", "TeamError"}
    for answer in refused:
        assert "sampling = 'fixed_size'" in answer["message"]
        assert "one process" in answer["message"]


def test_a_process_that_does_not_answer_stops_the_others(pair):
    """Process 1 hangs for 3 s after step 7 and the wait is 1 s; when it wakes up, it draws no more either."""
    for answer in pair.run(*rows(), seed=3, hang=(1, 7), timeout=1.0):
        assert answer["error"] == "TeamError"
        assert "another process is gone or did not answer within 1 s" in answer["message"]
        assert answer["drawn"] == [7, 7]


def test_a_killed_process_stops_the_other_by_name(pair):
    """The last test of the pair: SIGKILL after step 7."""
    first, second = pair.run(*rows(), seed=3, kill=(1, 7))
    assert second["error"] == "killed"
    assert first["error"] == "TeamError"
    assert "process 0 of 2 stopped before a step, of which nothing was drawn: another process is" in first["message"]
    assert first["drawn"] == [7, 7]


# -- without a second process -----------------------------------------------------------------------------------------
def test_a_missing_process_ends_the_wait(monkeypatch, unused_port):
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": unused_port, "RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(TeamError, match=r"when the run began: another process is gone or did not answer within 1 s"):
        Processes(timeout=1.0).__enter__()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_shares_of_secret_noise_never_add_up_to_less(size):
    total = math.fsum(noise_share(True, rank, size) ** 2 for rank in range(size))
    assert 1.0 <= total <= 1.0 + 1e-14
    assert [noise_share(False, rank, size) for rank in range(size)] == [1.0] + [0.0] * (size - 1)


@pytest.mark.parametrize("secret", [True, False])
@pytest.mark.parametrize("n", [0, 1, 2, 10, 11])
def test_every_record_belongs_to_one_process(secret, n):
    found = []
    for rank in range(3):
        members = Processes()
        members.size, members.rank = 3, rank
        noise = SecretNoise() if secret else FixedNoise(0)
        mine = members.mine(poisson_indices, noise, n, 1.0)
        assert mine.dtype == np.int64
        assert (mine % 3 == rank).all()
        assert (np.diff(mine) > 0).all()
        found.append(mine)
    np.testing.assert_array_equal(np.sort(np.concatenate(found)), np.arange(n))


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor])
@pytest.mark.parametrize("n", [0, 1, 5])
def test_a_process_holds_its_own_records_under_their_numbers(kind, n):
    model, total = nn.Linear(2, 1).double(), 0
    X, y = np.arange(2.0 * n).reshape(n, 2), np.arange(n)
    for rank in range(3):
        members = Processes()
        members.size, members.rank = 3, rank
        mine = members.rows(kind(X), kind(y), lambda a, b: as_rows(a, b, model, torch.device("cpu")))
        assert len(mine) == n
        own = np.arange(rank, n, 3)
        taken, targets = mine.take(own)
        np.testing.assert_array_equal(taken, X[own])
        np.testing.assert_array_equal(targets, y[own])
        assert mine.zeros()[0].shape == (1, 2)
        total += len(mine._own)
        mine.close()
    assert total == n


def test_records_in_a_file_are_read_as_they_are_drawn_and_bad_ones_refused_as_ever(tmp_path):
    members, model = Processes(), nn.Linear(2, 1).double()
    members.size, members.rank = 2, 1
    np.save(tmp_path / "X.npy", np.arange(10.0).reshape(5, 2))

    def make(X, y):
        return as_rows(X, y, model, torch.device("cpu"))

    mine = members.rows(np.load(tmp_path / "X.npy", mmap_mode="r"), np.arange(5), make)
    assert isinstance(mine, StoredRows)
    np.testing.assert_array_equal(mine.take(np.array([1, 3]))[0], [[2.0, 3.0], [6.0, 7.0]])
    with pytest.raises(DataError):
        members.rows(np.zeros((5, 2)), np.zeros(4), make)


def test_noise_before_the_team_has_begun_is_refused():
    with pytest.raises(ConfigError, match="std"):
        SecretNoise().normal(Processes().noise_share, 3)


def test_notes_are_of_all_records():
    parts = [
        {"batch_size": [4, 0], "non_finite": [1, 0], "clipped_share": [1.0, 0.0], "mean_norm": [2.0, 0.0]},
        {"batch_size": [1, 0], "non_finite": [0, 0], "clipped_share": [0.0, 0.0], "mean_norm": [6.0, 0.0]},
    ]
    merged = merged_notes([{**part, "left_out": k + 1, "steps_run": 2} for k, part in enumerate(parts)])
    assert merged == {
        "batch_size": [5, 0], "non_finite": [1, 0], "clipped_share": [0.75, 0.0], "mean_norm": [3.0, 0.0],
        "left_out": 3, "steps_run": 2,
    }  # fmt: skip


def test_one_process_needs_no_other():
    members, done = Alone(), []
    with members:
        members.once(lambda: done.append(1))
        members.ready()
        members.agree("nothing", {})
        assert members.share("said") == "said"
        assert members.merged({"left_out": 2}) == {"left_out": 2}
    assert done == [1]
    assert (members.size, members.rank, members.noise_share) == (1, 0, 1.0)


def test_processes_have_every_method_of_the_protocol():
    names = {name for name in vars(team.Team) if not name.startswith("_")} | {"__enter__", "__exit__"}
    for name in names:
        assert callable(getattr(Processes, name)), name
        assert callable(getattr(Alone, name)), name


@pytest.mark.parametrize("text", ["0", "-1", "x", "nan", "inf", "1e9"])
def test_the_wait_is_a_number_of_seconds(monkeypatch, text):
    monkeypatch.setenv("DPML_PROCESS_TIMEOUT", text)
    with pytest.raises(ConfigError, match="DPML_PROCESS_TIMEOUT"):
        Processes()


def test_the_wait_is_five_minutes_or_as_asked(monkeypatch):
    monkeypatch.delenv("DPML_PROCESS_TIMEOUT", raising=False)
    assert Processes().timeout == 300.0
    monkeypatch.setenv("DPML_PROCESS_TIMEOUT", "12.5")
    assert Processes().timeout == 12.5
    assert Processes(timeout=2.0).timeout == 2.0


@pytest.mark.parametrize("text", ["0", "-2", "two", "1.5", "²"])
def test_a_world_size_that_is_none_is_refused(monkeypatch, text):
    monkeypatch.setenv("WORLD_SIZE", text)
    with pytest.raises(ConfigError, match="WORLD_SIZE"):
        processes.world_size()


def test_the_command_that_repeats_a_run(monkeypatch):
    for name in ("WORLD_SIZE", "RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert processes.launcher() == ["python"]
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert processes.launcher() == ["torchrun", "--nproc_per_node=4"]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert processes.launcher() == ["torchrun", "--nnodes=2", "--nproc_per_node=2"]


@pytest.fixture
def unused_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def test_errors_are_errors_of_dpml():
    assert issubclass(TeamError, DpmlError)
    assert issubclass(team.Disagreement, ConfigError)
    assert issubclass(team.Disagreement, TeamError)
