"""A run of several processes: what process 0 tells the others, and what those do.

Process 0 plans, charges, writes and reports; the others train with it (:mod:`dpml.sgd.team`) and write nothing.  All
must hold the same table: a record that two of them took for their own would count twice, so the records are compared,
by an HMAC under a key of this run, before anything is drawn.
"""

from __future__ import annotations

import hmac
import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType
from typing import TYPE_CHECKING, Any

from dpml.accounting import Ledger
from dpml.arguments import MODELS
from dpml.data import PrivateData, Records
from dpml.errors import ConfigError, DataError
from dpml.machine import Stopped
from dpml.mechanisms import FixedNoise, NoiseSource, default_noise
from dpml.results import dumps
from dpml.running import released_model, train_by_plan
from dpml.runs import Plan, RunResult, as_written, plan_differences, records_mac

if TYPE_CHECKING:
    import torch

    from dpml.sgd.team import Team
    from dpml.trainer import PrivateTrainer


def team_of(processes: int) -> AbstractContextManager[Team | None]:
    """The processes of a run, or None for one process (torch is not loaded for that)."""
    if processes == 1:
        return nullcontext()
    from dpml.sgd import Processes

    return Processes()


def split_source(noise_source: NoiseSource | None, split_key: int) -> NoiseSource:
    """What splits off the test records: the same in every process, and again when a run is resumed."""
    if noise_source is not None and not noise_source.secret:
        return noise_source
    return FixedNoise(split_key)


def reading(plan: Plan) -> dict[str, bool]:
    """How ``dp_sgd`` wants its records: rows of large data as they are drawn."""
    if plan.method != "dp_sgd":
        return {}
    return {"lazy": True, "every_record": plan.parameters.sampling == "fixed_size"}


def check_reading(plan: Plan, data: PrivateData) -> None:
    """ConfigError, before anything is charged, for data that cannot be read as the method and the stages need it.

    DataError where a sample of fixed size is to be drawn from another number of records than declared: that number is
    public then.
    """
    wanted = reading(plan)
    if wanted.get("every_record") and not data.keeps_every_record:
        raise ConfigError(
            "sampling = 'fixed_size' needs data in which every record counts; tables and bundled data leave out those "
            "that cannot be used. Use sampling='poisson', or PrivateData.from_arrays."
        )
    if wanted.get("every_record") and data.size is not None:
        plan.parameters.check_records(data.size())
    if plan.stages.get("labels") is not None and data.is_stored(**wanted):
        raise ConfigError(
            "shares.labels counts the labels of records in memory, and dp_sgd reads these as they are drawn. Leave the "
            "share out."
        )


def hand_over(team: Team | None, plan: Plan, split_key: int) -> None:
    """Process 0 tells the others the plan and the key of the split into training and test records."""
    if team is not None:
        team.share((json.loads(dumps(plan.to_dict())), split_key))


def show_records(team: Team | None, key: bytes, mac: str) -> None:
    """Process 0 tells the others what their records must be."""
    if team is not None:
        team.share((key, mac))


def announce(team: Team | None, result: RunResult) -> None:
    """Process 0 tells the others how the run ended."""
    if team is not None:
        names = ("guarantee", "ledger", "metrics", "nonprivate", "accountant_used", "command")
        team.share({name: getattr(result, name) for name in names})


def follow(trainer: PrivateTrainer, plan: Plan, data: PrivateData, team: Team) -> RunResult:
    """Train as another process than 0; the result has the same model, and no private notes.

    Raises:
        ConfigError, DataError: other arguments, declarations or records than process 0 has; nothing was drawn.
        TeamError: another process failed.
    """
    written, split_key = team.share()
    differences = plan_differences(written, plan.to_dict())
    if differences:
        raise ConfigError(
            f"process 0 and process {team.rank} differ in their plans: {'; '.join(differences)}. Nothing was drawn. "
            "Start all with the same arguments."
        )
    plan = as_written(plan, written)
    records = data.load(split_source(trainer.noise_source, split_key), **reading(plan))
    key, mac = team.share()
    _refuse_other_records(records, key, mac, team.rank)
    noise = trainer.noise_source or default_noise()
    in_memory = Ledger.create(None, written)  # process 0 charges
    with leader_stops():
        weights, module, _ = train_by_plan(
            trainer, plan, data.public, records, in_memory, None, noise, None, None, team
        )
    return RunResult(
        trajectory=plan.trajectory,
        plan=plan,
        model=released_model(trainer, plan, data.public, weights, module),
        run_dir=None,
        private={},
        **team.share(),
    )


def follow_resumed(
    trainer_class: type[PrivateTrainer],
    data: PrivateData,
    team: Team,
    *,
    model: torch.nn.Module | None,
    loss: Callable[..., torch.Tensor] | None,
    noise_source: NoiseSource | None,
) -> RunResult:
    """The same for a run that process 0 resumes; only that one reads its folder."""
    arguments: dict[str, Any] = dict(team.share())
    if model is not None:
        arguments["model"] = model
    elif arguments["model"] not in MODELS:
        raise ConfigError(f"the run trained your own module {arguments['model']!r}: pass model=YourModule().")
    trainer = trainer_class(**arguments, loss=loss, noise_source=noise_source)
    return follow(trainer, trainer.plan(data), data, team)


@contextmanager
def leader_stops() -> Iterator[None]:
    """Ctrl-C and SIGTERM, which reach all processes, wait for process 0 to stop at its checkpoint; twice, they do not.

    Only where Python's own handlers are in place, and only in the main thread.
    """
    asked: set[int] = set()

    def ask(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt if number == signal.SIGINT else Stopped(128 + number)
        asked.add(number)

    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
            if signal.getsignal(number) is usual:
                before[number] = signal.signal(number, ask)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _refuse_other_records(records: Records, key: bytes, mac: str, process: int) -> None:
    if not hmac.compare_digest(records_mac(key, records), mac):
        raise DataError(
            f"process {process} does not hold the very same records as process 0, in the same order; nothing was "
            "drawn. All processes read one table, each takes its part itself."
        )
