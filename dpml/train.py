"""``python -m dpml.train``: compose a config, train, write the run folder; with ``-m`` a sweep.

Hydra composes and schedules; everything that touches data is in :mod:`dpml.trainer`.  A job that fails keeps its
traceback in its own ``private/``, the others go on, and the exit status says that something failed.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from dpml import config as configuration
from dpml import processes, resume_command
from dpml.accounting import DatasetLedger, verify
from dpml.errors import BudgetExceededError, ConfigError, DpmlError, RunFolderError
from dpml.jobs import failures, finish_release, read_status, run_job
from dpml.release import RunFolder
from dpml.results import dumps, write_atomic
from dpml.resuming import can_go_on, way_to_go_on

SWEEP_FILE = "sweep.json"
SWEEP_FORMAT = 1


def _empty_folder(key: str, folder: Path) -> None:
    """Refuse a folder that holds something or cannot be written, before Hydra writes into it."""
    way_out = f"Choose another {key}."
    try:
        if folder.exists() and any(folder.iterdir()):
            kind = "holds a run already" if (folder / "release").exists() else "is not empty"
            if (folder / SWEEP_FILE).exists():
                kind, way_out = "holds a sweep already", f"{way_out[:-1]}, or finish it with resume_sweep={folder}."
            elif can_go_on(folder):
                way_out = f"{way_out[:-1]}, or go on with that run: {way_to_go_on(RunFolder(folder))}"
            raise RunFolderError(f"{key} = {str(folder)!r} {kind}; nothing was overwritten. {way_out}")
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise RunFolderError(f"{key} = {str(folder)!r} cannot be written ({reason}). {way_out}") from error


# -- sweeps -----------------------------------------------------------------------------------------------------------
def sweep_jobs(arguments: Sequence[str], params: Mapping[str, Any] | None = None) -> list[list[str]]:
    """The override lists of a sweep's jobs, in the order in which Hydra's basic sweeper numbers them."""
    texts = [f"{key}={value}" for key, value in (params or {}).items()] + list(arguments)
    loader = GlobalHydra.instance().config_loader()
    choices: dict[str, list[str]] = {}
    for override in OverridesParser.create(config_loader=loader).parse_overrides(texts):
        key = override.get_key_element()
        if override.is_sweep_override():
            choices[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
        else:
            choices[key] = [f"{key}={override.get_value_element_as_str()}"]
    return [list(job) for job in itertools.product(*choices.values())]


class RunCallback(Callback):
    """Checks before Hydra writes anything; for a sweep all jobs before job 0, then ``sweep.json`` and the report.

    Hydra turns an exception of a callback into a warning and goes on, so a fault leaves as SystemExit.
    """

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        """A single run: nothing is written, not even its folder, when something is wrong."""
        try:
            configuration.check_hydra_keys(config.hydra)
            configuration.check(_job_of(config))
            _empty_folder("hydra.run.dir", Path(str(config.hydra.run.dir)))
        except (DpmlError, OmegaConfBaseException) as error:  # an interpolation that leads nowhere
            print(f"error: {error}", file=sys.stderr)
            raise SystemExit(1) from error

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Compose and check every job; the first fault stops the sweep before anything runs."""
        try:
            root = _checked_sweep(config)
        except (DpmlError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            raise SystemExit(1) from error
        print(f"sweep → {root}")

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        """Summary, plot and report of the sweep."""
        try:
            finish_sweep(Path(str(config.hydra.sweep.dir)))
        except Exception as error:
            failures.append(str(config.hydra.sweep.dir))
            print(f"error: the sweep's report could not be written: {type(error).__name__}: {error}", file=sys.stderr)


def _checked_sweep(config: DictConfig) -> Path:
    """Check all jobs of a sweep and write its ``sweep.json``; returns the sweep's folder."""
    configuration.check_hydra_keys(config.hydra)
    root = Path(str(config.hydra.sweep.dir))
    jobs = sweep_jobs(list(config.hydra.overrides.task), config.hydra.sweeper.get("params"))
    loader, caps = GlobalHydra.instance().config_loader(), _Caps()
    for number, overrides in enumerate(jobs):
        try:
            job = _job_of(loader.load_configuration("config", overrides, run_mode=RunMode.RUN))
            configuration.check(job)
            caps.add(job)
        except (DpmlError, HydraException, OmegaConfBaseException) as error:
            raise ConfigError(
                f"job {number} of {len(jobs)} ({' '.join(overrides)}) cannot run, so no job was started: {error}"
            ) from error
    _empty_folder("hydra.sweep.dir", root)
    _lock_sweep(root)
    write_sweep(root, [{"number": k, "overrides": job, "folders": [str(k)]} for k, job in enumerate(jobs)])
    return root


def _job_of(config: DictConfig) -> DictConfig:
    """The composed config without Hydra's own part."""
    job = config.copy()
    OmegaConf.set_struct(job, False)
    job.pop("hydra", None)
    return job


class _Caps:
    """Whether the jobs of a sweep fit under their data set ledgers together, before the first one runs."""

    def __init__(self) -> None:
        self._asked: dict[str, tuple[float, float]] = {}

    def add(self, job: DictConfig) -> None:
        privacy = job.privacy
        if privacy.dataset_ledger is None or privacy.epsilon is None:
            return
        if privacy.dataset_filter != "basic":  # more fits than Σε says; each job asks the filter with its own event
            return
        public = configuration.build_data(job).public
        delta = privacy.delta if privacy.delta is not None else public.usual_delta
        spent = self._asked.get(privacy.dataset_ledger)
        if spent is None:
            relation = privacy.neighboring_relation
            spent = DatasetLedger(
                privacy.dataset_ledger, privacy.dataset_epsilon, privacy.dataset_delta, neighboring_relation=relation
            ).total()
        total = (spent[0] + privacy.epsilon, spent[1] + delta)
        if total[0] > privacy.dataset_epsilon * (1 + 1e-9) or total[1] > privacy.dataset_delta * (1 + 1e-9):
            raise BudgetExceededError(
                f"with this job the runs of {privacy.dataset_ledger} come to epsilon = {total[0]:g}, "
                f"delta = {total[1]:g}, more than the cap of {privacy.dataset_epsilon:g}, {privacy.dataset_delta:g}."
            )
        self._asked[privacy.dataset_ledger] = total


_locks: list[int] = []
"""Open handles whose locks say that a sweep is being worked on; the system drops them with the process."""


def _lock_sweep(root: Path) -> None:
    handle = os.open(root / ".lock", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise RunFolderError(
            f"the sweep in {str(root)!r} is being worked on by another process. Wait for it, or stop it first."
        ) from error
    _locks.append(handle)


def write_sweep(root: Path, jobs: Sequence[Mapping[str, Any]]) -> None:
    """``sweep.json``: which jobs there are and in which folders they ran."""
    write_atomic(root / SWEEP_FILE, dumps({"format": SWEEP_FORMAT, "jobs": list(jobs)}))


def finish_sweep(root: Path) -> None:
    """Write the sweep's report and say what failed."""
    from dpml.report import write_sweep_report

    if not (root / SWEEP_FILE).exists():
        return  # stopped before job 0
    jobs = json.loads((root / SWEEP_FILE).read_text("utf-8"))["jobs"]
    failed = [job["number"] for job in jobs if read_status(root / job["folders"][-1]) != "done"]
    summary = write_sweep_report(root)
    composed = summary.get("composed")
    total = (
        f"ε = {float(composed['epsilon']):.4g} at δ = {float(composed['delta']):.3g} (each job has its own ε; "
        "selection not paid for: the best job's model carries this composed ε)"
        if composed
        else "no composed ε can be stated (the report says why)"
    )
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    console.print(
        f"{len(jobs) - len(failed)} of {len(jobs)} jobs done → {root / 'report.html'}\n"
        f"publishing the whole sweep: {total}",
        markup=False,
    )
    if failed:
        print(
            f"error: job{'s' if len(failed) > 1 else ''} {', '.join(map(str, failed))} did not finish; "
            f"run the rest with: {shlex.join(['python', '-m', 'dpml.train', f'resume_sweep={root}'])}",
            file=sys.stderr,
        )
        failures.append(str(root))


def resume_sweep(root: Path) -> int:
    """Run what ``root/sweep.json`` still misses; finished jobs are left alone.

    A killed DP-SGD job goes on from its checkpoint and ledger; any other unfinished job starts anew in a new folder,
    and what its old folder charged stays in the sweep's composed ε.
    """
    path = root / SWEEP_FILE
    try:
        jobs = json.loads(path.read_text("utf-8"))["jobs"]
        _lock_sweep(root)
        missing = [job for job in jobs if not _finished(root / job["folders"][-1])]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(
            f"resume_sweep = {str(root)!r} is not a sweep's folder: {SWEEP_FILE} cannot be read "
            f"({type(error).__name__})."
        ) from error
    print(f"{len(jobs) - len(missing)} of {len(jobs)} jobs are done; running {len(missing)}")
    with hydra.initialize_config_dir(str(configuration.config_folder()), version_base="1.3"):
        composed = [(job, hydra.compose("config", overrides=list(job["overrides"]))) for job in missing]
    for _, config in composed:
        configuration.check(config)
    for job, config in composed:
        folder = root / job["folders"][-1]
        if can_go_on(folder):
            run_job(config, folder, job["overrides"], resume=True)
            continue
        if (folder / "release").exists():
            job["folders"].append(f"{job['number']}-{len(job['folders'])}")
            write_sweep(root, jobs)
            folder = root / job["folders"][-1]
        run_job(config, folder, job["overrides"])
    finish_sweep(root)
    return 1 if any(read_status(root / job["folders"][-1]) != "done" for job in jobs) else 0


def _finished(folder: Path) -> bool:
    """Whether a job is done; one that was killed while its report was written only gets its report."""
    if read_status(folder) == "done":
        return True
    if not (folder / "release/result.json").is_file() or not verify(folder).ok:
        return False
    finish_release(folder)
    return True


# -- entry ------------------------------------------------------------------------------------------------------------
def main() -> int:
    """Exit status 0, or 1 if anything failed (Hydra itself exits with 1 on a bad command line)."""
    configuration.register()
    failures.clear()
    resumed = [text.split("=", 1)[1] for text in sys.argv[1:] if text.startswith("resume_sweep=")]
    while _locks:
        os.close(_locks.pop())
    try:
        if processes.world_size() > 1:
            _refuse_flags(sys.argv[1:])
            if processes.rank() > 0:
                return follow_job(sys.argv[1:])
        if resumed:
            if len(sys.argv) != 2:
                raise ConfigError(
                    "resume_sweep=FOLDER stands alone: the jobs run with the overrides that the sweep was started with."
                )
            return resume_sweep(Path(resumed[0]))
        if resume_command.is_asked(sys.argv[1:]):
            return resume_command.resume_run(sys.argv[1:])
        _check_names(sys.argv[1:])
        hydra.main(version_base="1.3", config_path=str(configuration.config_folder()), config_name="config")(_task)()
    except DpmlError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # the job has said how to go on
        return 128 + signal.SIGINT
    return 1 if failures else 0


def follow_job(overrides: Sequence[str]) -> int:
    """Take part in the job of process 0 under ``torchrun``; writes nothing, and prints an error only."""
    try:
        if resume_command.is_asked(overrides):
            resume_command.follow_run(overrides)
            return 0
        with hydra.initialize_config_dir(str(configuration.config_folder()), version_base="1.3"):
            config = hydra.compose("config", overrides=list(overrides))
        configuration.check(config)
        configuration.build_trainer(config, run_dir=None).fit(configuration.build_data(config))
        return 0
    except Exception as error:
        message = str(error) if isinstance(error, DpmlError) else f"{type(error).__name__}: {error}"
        print(f"error: process {processes.rank()}: {message}", file=sys.stderr)
        return 1


def _refuse_flags(arguments: Sequence[str]) -> None:
    """Several processes train one job together: no sweep, and no flag of Hydra's that does something else."""
    way_out = "Give torchrun single runs with overrides only; start sweeps with python -m dpml.train."
    for text in arguments:
        if text.startswith(("-", "resume_sweep=")):
            processes.refuse_several(text, way_out)


def _task(config: DictConfig) -> str:
    composed = HydraConfig.get()
    folder = Path(composed.runtime.output_dir)
    return "done" if run_job(config, folder, list(composed.overrides.task)) else "failed"


def _check_names(arguments: Sequence[str]) -> None:
    """Misspelt group choices get a near match; Hydra's own message lists all."""
    import difflib

    for text in arguments:
        key, _, value = text.lstrip("+").partition("=")
        folder = configuration.config_folder() / key
        if key in ("experiment", "sweep") and not text.startswith("+"):
            raise ConfigError(f"{text!r}: {key} is added with a plus sign: +{key}={value}")
        if not value or not folder.is_dir() or key.startswith("-"):
            continue
        names = sorted(path.stem for path in folder.glob("*.yaml"))
        for choice in value.split(","):
            if choice not in names and choice.isidentifier():
                near = difflib.get_close_matches(choice, names, 1)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                raise ConfigError(f"{key} = {choice!r} is unknown: there are {', '.join(names)}.{hint}")


if __name__ == "__main__":
    from dpml.train import main as installed_main  # one module object, also for Hydra's callback

    sys.exit(installed_main())
