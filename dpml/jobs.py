"""One job of ``python -m dpml.train``: from a composed config to its run folder, and what the console says of it."""

from __future__ import annotations

import json
import shlex
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.console import Console

from dpml import config as configuration
from dpml import processes, tracking, workers
from dpml.console import StepBar, cap_line, plan_table, result_table
from dpml.data import PrivateData
from dpml.errors import DpmlError, RunFolderError
from dpml.release import RunFolder
from dpml.results import dumps, without_folders, write_atomic
from dpml.resuming import can_go_on, tidy, way_to_go_on
from dpml.runs import RunResult
from dpml.trainer import PrivateTrainer

failures: list[str] = []
"""Folders of the jobs of this process that failed; the exit status follows from it."""


def run_job(
    config: DictConfig,
    folder: Path,
    overrides: Sequence[str],
    *,
    resume: bool = False,
    changes: Mapping[str, Any] | None = None,
) -> bool:
    """Train one configuration into ``folder``, or go on with the run in it; returns whether it worked.

    Errors end here: the traceback (it may hold private values) goes to the job's ``private/``, and the console gets
    the message, which the custodian sees.  A resume that is refused writes nothing: the run may be another process'.

    Args:
        config, folder, overrides: what is trained, where, and the command line's words that were given for it.
        resume: go on with the run in ``folder``.
        changes: device and micro_batch_size for the rest of a resumed run, where they are others than before.

    Raises:
        KeyboardInterrupt: Ctrl-C; the console was told how to go on.
    """
    side_by_side = workers.is_worker()  # several jobs write to one terminal: a line each
    console, status = _console(side_by_side), _Status(folder)
    try:
        configuration.check(config)
        data = configuration.build_data(config)
        trainer = configuration.build_trainer(config, run_dir=folder)
        plan = trainer.plan(data)
        console.print(plan_table(plan))
        if plan.method != "nonprivate":
            console.print(str(plan.guidance["text"]), markup=False)
        _show_cap(console, trainer)
        if not resume:
            _refuse_used_folder(folder)
            status.claim()
        with StepBar(config.verbose and not side_by_side) as bar:
            result = _trained(config, trainer, data, status, bar, command_of(overrides), resume, changes or {})
        status.claim()
        if config.report:
            _write_report(folder)
        write_status(folder, "done")
        console.print(result_table(result))
        _show_cap(console, trainer)
        if side_by_side:
            workers.say(f"job {folder.name}: {_in_a_line(result)}")
        tracking.track(folder, config.tracking.mlflow, config.tracking.experiment)
        return True
    except KeyboardInterrupt as stop:
        print(f"dpml: {str(stop) or _after_a_stop(folder)}", file=sys.stderr)
        raise
    except Exception as error:
        failures.append(str(folder))
        expected = isinstance(error, DpmlError)
        message = str(error) if expected else f"{type(error).__name__}: {error}"
        if side_by_side:
            workers.say(f"error: job {folder.name}: {message}", 2)
        else:
            print(f"error: {message}", file=sys.stderr)
        if status.claimed or not (folder / "release").exists() or (resume and not expected):
            write_status(folder, "failed", error)
            if (folder / "private/traceback.txt").exists():
                print(f"traceback: {folder / 'private/traceback.txt'}", file=sys.stderr)
        if not expected and status.claimed and can_go_on(folder):
            print(f"go on with: {way_to_go_on(RunFolder(folder))}", file=sys.stderr)
        return False


class _Status:
    """``"running"`` is written once, when the folder is surely this process'."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.claimed = False

    def claim(self) -> None:
        if not self.claimed:
            self.claimed = True
            write_status(self._folder, "running")


def _show_cap(console: Console, trainer: PrivateTrainer) -> None:
    """What the data set ledger has spent; of one that cannot be read the run itself says so, where it needs it."""
    with suppress(DpmlError):
        cap = trainer.cap()
        if cap is not None:
            console.print(cap_line(cap), markup=False)


def _trained(
    config: DictConfig,
    trainer: PrivateTrainer,
    data: PrivateData,
    status: _Status,
    bar: StepBar,
    command: str,
    resume: bool,
    changes: Mapping[str, Any],
) -> RunResult:
    if not resume:
        return trainer.fit(data, progress=bar, config=configuration.public_text(config), command=command)

    def progress(step: int, steps: int, epsilon: float) -> None:
        status.claim()  # the first step: the run's lock is held
        bar(step, steps, epsilon)

    assert trainer.run_dir is not None
    return PrivateTrainer.resume(
        trainer.run_dir, data, progress=progress, command=command, configured=trainer, **changes
    )


def command_of(overrides: Sequence[str]) -> str:
    """The command line that repeats a job (with fresh noise)."""
    return shlex.join([*processes.launcher(), "-m", "dpml.train", *map(without_folders, kept_overrides(overrides))])


def kept_overrides(overrides: Sequence[str]) -> list[str]:
    """Those that say what is trained, not where Hydra writes."""
    return [text for text in overrides if not text.lstrip("+~").startswith("hydra.")]


def _console(quiet: bool) -> Console:
    return Console(width=None if sys.stdout.isatty() else 120, highlight=False, quiet=quiet)


def _in_a_line(result: RunResult) -> str:
    """Method, ε (rounded up) and the metric that the result shows, if it shows one."""
    from dpml.report.formats import upper

    shown = [f"{name} {result.metrics[name]:.4f}" for name in ("accuracy", "r2", "mae") if name in result.metrics][:1]
    return ", ".join([result.plan.method, f"ε = {upper(result.guarantee.epsilon)}", *shown])


def _refuse_used_folder(folder: Path) -> None:
    if (folder / "release").exists():
        raise RunFolderError(
            f"{str(folder)!r} holds a run already; nothing was overwritten. Choose another hydra.run.dir."
        )


def _write_report(folder: Path) -> None:
    from dpml.report import write_run_report

    try:
        write_run_report(folder)
    except OSError as error:
        raise RunFolderError(
            f"the release in {str(folder)!r} is complete, but its report cannot be written "
            f"({error.strerror or type(error).__name__}). Free space, then: "
            f"{shlex.join(['python', '-m', 'dpml.report', str(folder)])}"
        ) from error
    RunFolder.open(folder).link_to_top("report.html")


def finish_release(folder: Path, *, report: bool = True) -> None:
    """What a run killed after its last released file still lacks: the report if it is wanted, the links, the status.

    Raises:
        RunFolderError: the disk refuses.
    """
    if report:
        _write_report(folder)
    tidy(RunFolder.open(folder))
    write_status(folder, "done")


def _after_a_stop(folder: Path) -> str:
    """What a Ctrl-C outside the steps of ``dp_sgd`` left, and the way out."""
    if (folder / "release/result.json").is_file():
        return f"stopped; the release is complete. For what is left: {way_to_go_on(RunFolder(folder))}"
    if can_go_on(folder) or (folder.parent / "sweep.json").is_file():
        return f"stopped. Go on with: {way_to_go_on(RunFolder(folder))}"
    return "stopped; nothing was released, what was charged stays spent. Start a new run in another folder."


def write_status(folder: Path, status: str, error: BaseException | None = None) -> None:
    """``private/status.json`` and, for a failure, ``private/traceback.txt``; an unwritable folder is let be."""
    private = folder / "private"
    try:
        private.mkdir(parents=True, exist_ok=True)
        private.chmod(0o700)
        if error is not None:
            write_atomic(private / "traceback.txt", "".join(traceback.format_exception(error)))
        write_atomic(
            private / "status.json",
            dumps({"status": status, "error": None if error is None else type(error).__name__}),
        )
    except OSError as problem:
        print(f"error: cannot write {private}: {problem.strerror}", file=sys.stderr)


def read_status(folder: Path) -> str:
    """``"done"``, ``"failed"``, ``"running"`` (or killed) or ``"missing"``."""
    try:
        return str(json.loads((folder / "private" / "status.json").read_text("utf-8"))["status"])
    except (OSError, ValueError, KeyError, TypeError):
        return "missing"
