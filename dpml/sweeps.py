"""Sweeps: all jobs checked before the first one runs, their list in ``sweep.json``, the end, and going on later."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from dpml import config as configuration
from dpml import launching, workers
from dpml.accounting import DatasetLedger, verify
from dpml.composition_faults import fault_text
from dpml.errors import BudgetExceededError, ConfigError, DpmlError, RunFolderError
from dpml.jobs import failures, finish_release, read_status
from dpml.launching import Place, Task
from dpml.release import RunFolder
from dpml.results import dumps, write_atomic
from dpml.resuming import can_go_on, way_to_go_on

SWEEP_FILE = "sweep.json"
SWEEP_FORMAT = 1


def empty_folder(key: str, folder: Path) -> None:
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


def start(config: DictConfig) -> Path:
    """Check all jobs of a sweep, write its ``sweep.json`` and settle where they run; returns the sweep's folder.

    Raises:
        DpmlError, OSError: what is wrong; nothing was started.
    """
    configuration.check_hydra_keys(config.hydra)
    root = Path(str(config.hydra.sweep.dir))
    jobs = sweep_jobs(list(config.hydra.overrides.task), config.hydra.sweeper.get("params"))
    devices = _check_jobs(jobs)
    place = launching.place_of(config.hydra.launcher, len(jobs), devices)
    empty_folder("hydra.sweep.dir", root)
    _lock_sweep(root)
    words = [text for text in config.hydra.overrides.hydra if is_launcher_word(text)]
    write_sweep(root, [{"number": k, "overrides": job, "folders": [str(k)]} for k, job in enumerate(jobs)], words)
    if place.kind != "ray" and config.hydra.launcher.get("_target_") == launching.JOBLIB:
        with open_dict(config):
            config.hydra.launcher.n_jobs = place.at_once
    _begin(root, place)
    return root


def _check_jobs(jobs: Sequence[Sequence[str]]) -> list[str]:
    """Compose and check them; gives the devices that they name.

    Jobs that differ in nothing but the seed are checked once, and every seed once.
    """
    loader, caps = GlobalHydra.instance().config_loader(), _Caps()
    checked: dict[tuple[str, ...], DictConfig] = {}
    seeds: set[str] = set()
    for number, overrides in enumerate(jobs):
        same = tuple(text for text in overrides if not text.startswith("seed="))
        seed = "".join(text for text in overrides if text.startswith("seed="))
        try:
            if same not in checked or seed not in seeds:
                job = job_of(loader.load_configuration("config", list(overrides), run_mode=RunMode.RUN))
                configuration.check(job)
                checked.setdefault(same, job)
                seeds.add(seed)
            caps.add(checked[same])
        except (DpmlError, HydraException, OmegaConfBaseException) as error:
            why = str(error) if isinstance(error, DpmlError) else fault_text(error)
            raise ConfigError(
                f"job {number} of {len(jobs)} ({' '.join(overrides)}) cannot run, so no job was started: {why}"
            ) from error
    return sorted({str(job.device) for job in checked.values()})


def job_of(config: DictConfig) -> DictConfig:
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
_under_way: list[tuple[Path, Place]] = []
"""The sweep that this process has started and not finished."""


def forget() -> None:
    """Let go of the sweeps that this process worked on."""
    while _locks:
        os.close(_locks.pop())
    _under_way.clear()


def _begin(root: Path, place: Place) -> None:
    _under_way[:] = [(root, place)]
    if place.kind != "serial":
        launching.stop_at_checkpoints(root)


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


def write_sweep(root: Path, jobs: Sequence[Mapping[str, Any]], launcher: Sequence[str]) -> None:
    """``sweep.json``: which jobs there are, in which folders they ran, and the command's words about the launcher."""
    write_atomic(root / SWEEP_FILE, dumps({"format": SWEEP_FORMAT, "launcher": list(launcher), "jobs": list(jobs)}))


def is_launcher_word(text: str) -> bool:
    """Whether a word of the command line says where jobs run."""
    return text.lstrip("+").startswith(("hydra/launcher=", "hydra.launcher."))


def finish(root: Path) -> None:
    """Write the sweep's report and say what failed."""
    from dpml.report import write_sweep_report

    if not (root / SWEEP_FILE).exists():
        return  # stopped before job 0
    jobs = json.loads((root / SWEEP_FILE).read_text("utf-8"))["jobs"]
    failed = [job["number"] for job in jobs if read_status(root / job["folders"][-1]) != "done"]
    total = _total(write_sweep_report(root))
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


def _total(summary: Mapping[str, Any]) -> str:
    """What publishing all jobs comes to, rounded up; a sweep with a run without privacy has no such figure."""
    from dpml.report.formats import relation_words, upper

    composed, without = summary.get("composed"), summary.get("nonprivate_jobs") or []
    if not composed:
        return "no composed ε can be stated (the report says why)"
    found = (
        f"ε = {upper(composed['epsilon'])} at δ = {upper(composed['delta'])}, {relation_words(composed['relation'])}"
    )
    if without:
        jobs = f"job{'s' if len(without) > 1 else ''} {', '.join(map(str, without))}"
        return f"no guarantee, since {jobs} had no privacy" + (f"; without: {found}" if composed["ledgers"] else "")
    return f"{found} (each job has its own ε; selection not paid for: the best job's model carries this composed ε)"


def rescue() -> bool:
    """After Hydra gave up because a worker process was killed: run the jobs that had not started, unless a stop was
    asked for, then the report.

    Returns:
        Whether there was such a sweep.
    """
    if not _under_way or _under_way[0][1].kind != "joblib":
        return False
    root, place = _under_way[0]
    if launching.stop_signal() is not None:  # Ctrl-C reached a worker before its first job
        finish(root)
        return True
    launching.say_worker_lost()
    GlobalHydra.instance().clear()
    tasks = [_task_of(root, job) for job in _jobs(root)[0]]
    launching.run_tasks([task for task in tasks if never_started(task)], place, never_started)
    finish(root)
    return True


def never_started(task: Task) -> bool:
    """Whether a job has left nothing: no status, no release."""
    return read_status(task.folder) == "missing" and not (task.folder / "release").exists()


def resume(root: Path, words: Sequence[str] = ()) -> int:
    """Run what ``root/sweep.json`` still misses, where the sweep ran; finished jobs are left alone.

    A killed DP-SGD job goes on from its checkpoint and ledger; any other unfinished job starts anew in a new folder,
    and what its old folder charged stays in the sweep's composed ε.

    Args:
        root: the sweep's folder.
        words: of the command line, about the launcher (:func:`is_launcher_word`).

    Returns:
        The exit status.

    Raises:
        RunFolderError: no sweep, or somebody works on it.
        DpmlError: a job that cannot run any more.
    """
    try:
        jobs, launcher = _jobs(root)
        _lock_sweep(root)
        workers.wait_for_workers(root)
        workers.forget_stop(root)
        missing = [job for job in jobs if not _finished(root / job["folders"][-1])]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(
            f"resume_sweep = {str(root)!r} is not a sweep's folder: {SWEEP_FILE} cannot be read "
            f"({type(error).__name__})."
        ) from error
    print(f"{len(jobs) - len(missing)} of {len(jobs)} jobs are done; running {len(missing)}")
    with hydra.initialize_config_dir(str(configuration.config_folder()), version_base="1.3"):
        composed = [hydra.compose("config", overrides=list(job["overrides"])) for job in missing]
        for config in composed:
            configuration.check(config)
        if missing:
            place = _place(missing, [*launcher, *words], sorted({str(config.device) for config in composed}))
            _begin(root, place)
    if missing:
        tasks = [_task_of(root, job) for job in missing]
        write_sweep(root, jobs, launcher)  # with the new folders
        launching.run_tasks(tasks, place, never_started)
    finish(root)
    return 1 if any(read_status(root / job["folders"][-1]) != "done" for job in jobs) else 0


def _jobs(root: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The jobs of ``sweep.json``, and the words about the launcher."""
    found = json.loads((root / SWEEP_FILE).read_text("utf-8"))
    return found["jobs"], [str(text) for text in found.get("launcher", [])]


def _place(jobs: Sequence[Mapping[str, Any]], words: Sequence[str], devices: Sequence[str]) -> Place:
    overrides = [*jobs[0]["overrides"], *words]
    config = hydra.compose("config", overrides=overrides, return_hydra_config=True)
    return launching.place_of(config.hydra.launcher, len(jobs), devices)


def _task_of(root: Path, job: dict[str, Any]) -> Task:
    """Where and how an unfinished job goes on; a new folder, if it needs one, is added to ``job``."""
    folder = root / job["folders"][-1]
    if can_go_on(folder):
        return Task(root, folder, tuple(job["overrides"]), resume=True)
    if (folder / "release").exists():
        job["folders"].append(f"{job['number']}-{len(job['folders'])}")
        folder = root / job["folders"][-1]
    return Task(root, folder, tuple(job["overrides"]))


def _finished(folder: Path) -> bool:
    """Whether a job is done; one that was killed while its report was written only gets its report."""
    if read_status(folder) == "done":
        return True
    if not (folder / "release/result.json").is_file() or not verify(folder).ok:
        return False
    finish_release(folder)
    return True
