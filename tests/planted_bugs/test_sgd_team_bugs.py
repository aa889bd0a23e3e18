"""Each privacy-critical line of training by several processes, broken on purpose in both: the named check fails."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "sgd"))

import team_checks as checks


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    two = checks.Pair(tmp_path_factory.mktemp("pair"))
    yield two
    two.close()


FAULTS = [
    (checks.noises_are_independent, "same_key", {}),
    (checks.noise_has_the_planned_variance, "same_key", {}),
    (checks.noise_has_the_planned_variance, "full_noise_by_all", {}),
    (checks.noise_has_the_planned_variance, "share_forgotten_by_one", {}),
    (checks.noise_has_the_planned_variance, "no_noise_for_an_empty_batch", {"n": 1}),
    (checks.the_normaliser_is_public, "local_normaliser", {}),
    (checks.the_normaliser_is_public, "half_normaliser", {}),
    (checks.only_process_0_charges, "charged_by_all", {}),
    (checks.nothing_is_drawn_before_the_charge_is_on_disk, "not_waiting_for_the_charge", {}),
    (checks.a_lost_process_stops_the_other_before_it_draws, "no_barrier", {}),
    (checks.a_lost_process_stops_the_other_before_it_draws, "drawn_before_the_barrier", {}),
    (checks.two_processes_give_the_weights_of_one, "everyone_takes_all", {}),
    (checks.two_processes_give_the_weights_of_one, "own_clip", {"clipping": "adaptive", "count_noise": 2.0}),
    (checks.other_records_are_refused, "records_not_compared", {}),
    (checks.roundings_of_all_processes_are_allowed_for, "grid_of_one", {}),
]


@pytest.mark.parametrize(("check", "fault", "arguments"), FAULTS, ids=[fault for _, fault, _ in FAULTS])
def test_planted(pair, check, fault, arguments):
    check(pair, **arguments)
    with pytest.raises(AssertionError):
        check(pair, fault, **arguments)
