"""Where the jobs of a sweep run: here one by one, on all cores through joblib, or on a Ray cluster.

On the first run Hydra's launcher plugins do it (hydra-joblib-launcher, and :class:`RayLauncher` below).  The jobs of a
resumed sweep have other folders than Hydra would give them, so :func:`run_tasks` hands them to the same joblib or Ray
itself.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, configure_log, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig, OmegaConf, open_dict

from dpml import config as configuration
from dpml import jobs, workers
from dpml.errors import ConfigError, invalid
from dpml.machine import Stopped

JOBLIB = "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher"
RAY = "hydra_plugins.dpml_ray.RayLauncher"


@dataclass(frozen=True)
class Place:
    """Where jobs run.

    Attributes:
        kind: ``"serial"``, ``"joblib"`` or ``"ray"``.
        at_once: for joblib: number of worker processes; each gets cores // at_once threads (joblib sets
            OMP_NUM_THREADS and its like for its workers, unless the environment has them).
        options: for Ray: ``num_cpus``, ``num_gpus``, ``init``.
    """

    kind: str
    at_once: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)


def place_of(launcher: DictConfig, number: int, devices: Sequence[str]) -> Place:
    """The place that ``hydra.launcher`` asks for, for ``number`` jobs on ``devices``.

    Raises:
        ConfigError: ``n_jobs`` is neither −1 nor a whole number from 1 on; Ray is not installed.
    """
    target = str(launcher.get("_target_"))
    if target == RAY:
        _ray()
        options = OmegaConf.to_container(launcher, resolve=True)
        assert isinstance(options, dict)
        return Place("ray", options={str(key): value for key, value in options.items() if key != "_target_"})
    if target != JOBLIB:
        return Place("serial")
    asked = launcher.get("n_jobs", -1)
    if not isinstance(asked, int) or isinstance(asked, bool) or (asked < 1 and asked != -1):
        raise invalid(
            "hydra.launcher.n_jobs", asked, "-1 (all cores) or a whole number ≥ 1", "hydra.launcher.n_jobs=1 runs the "
            "jobs one by one.",
        )  # fmt: skip
    at_once = min(number, asked if asked > 0 else 1 if any(map(_is_gpu, devices)) else cores())
    return Place("joblib", at_once) if at_once > 1 else Place("serial")


def cores() -> int:
    """Cores that this process may use (affinity, container limit and LOKY_MAX_CPU_COUNT counted)."""
    import joblib

    return int(joblib.cpu_count())


def _is_gpu(device: str) -> bool:
    if device != "auto":
        return device.startswith("cuda")
    import torch

    return bool(torch.cuda.is_available())


# -- jobs whose folders are known -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Task:
    """One job: its sweep, its folder, its words, and whether it goes on with the run in the folder."""

    root: Path
    folder: Path
    overrides: tuple[str, ...]
    resume: bool = False


def run_task(task: Task) -> str:
    """``"done"``, ``"failed"``, or in a worker ``"stopped"``."""
    with workers.one_job(task.root) as may_start:
        if not may_start:
            return "stopped"
        configuration.register()
        if workers.is_worker():
            GlobalHydra.instance().clear()  # of the job before
        with hydra.initialize_config_dir(str(configuration.config_folder()), version_base="1.3"):
            config = hydra.compose("config", overrides=list(task.overrides))
        return quietly_stopped(lambda: jobs.run_job(config, task.folder, task.overrides, resume=task.resume))


def quietly_stopped(run: Callable[[], bool]) -> str:
    """A worker's stop ends its job, not the sweep; outside a worker it goes up as before."""
    try:
        return "done" if run() else "failed"
    except (KeyboardInterrupt, SystemExit):
        if not workers.is_worker():
            raise
        return "stopped"


def run_tasks(tasks: Sequence[Task], place: Place, never_started: Callable[[Task], bool]) -> None:
    """Run them all.  A worker process that is killed costs the jobs that were under way, no others.

    Args:
        never_started: whether a job has left nothing at all, so that running it charges nothing twice.
    """
    if place.kind == "serial":
        for task in tasks:
            run_task(task)
    elif place.kind == "joblib":
        _with_joblib(tasks, place.at_once, never_started)
    else:
        _with_ray([(run_task, (task,)) for task in tasks], place.options)


def _with_joblib(tasks: Sequence[Task], at_once: int, never_started: Callable[[Task], bool]) -> None:
    from joblib import Parallel, delayed

    left = list(tasks)
    while left:
        try:
            Parallel(n_jobs=at_once, backend="loky", batch_size=1, pre_dispatch="n_jobs")(
                delayed(run_task)(task) for task in left
            )
            return
        except BrokenProcessPool:
            say_worker_lost()
            before, left = len(left), [task for task in left if never_started(task)]
            if len(left) == before:  # they do not even start
                return


def say_worker_lost() -> None:
    """To the custodian."""
    print(
        "error: a worker process was killed (lack of memory?), and joblib ended the others with it; the jobs that had "
        "not started go on. Fewer jobs at once: hydra.launcher.n_jobs=N.",
        file=sys.stderr,
    )


# -- Ray --------------------------------------------------------------------------------------------------------------
def _ray() -> Any:
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")  # read at import: lines of jobs look alike, and each one counts
    try:
        import ray
    except ImportError as error:
        raise ConfigError('hydra/launcher=ray needs Ray: pip install "dpml[ray]".') from error
    return ray


def _with_ray(calls: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]], options: Mapping[str, Any]) -> list[Any]:
    """One Ray task per call, none of them tried twice by Ray (a second try would charge anew without being asked).

    Returns:
        What each call gave; the exception where its worker or its node was lost.
    """
    ray = _ray()
    mine = not ray.is_initialized()
    if mine:
        ray.init(**{"include_dashboard": False, "logging_level": "warning", **dict(options.get("init") or {})})
    try:
        wanted = {"num_cpus": options.get("num_cpus", 1), "num_gpus": options.get("num_gpus", 0)}
        remote = ray.remote(max_retries=0, **wanted)(_in_ray)
        places = {remote.remote(call, arguments): place for place, (call, arguments) in enumerate(calls)}
        found: list[Any] = [None] * len(calls)
        while places:
            for one in ray.wait(list(places), num_returns=1)[0]:
                found[places.pop(one)] = _got(ray, one)
        return found
    finally:
        if mine:
            ray.shutdown()


def _in_ray(call: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, list[tuple[str, int]]]:
    """In a worker: what ``call`` gave, and the lines that it said.

    Ray's own way from a worker's output to the driver's loses lines: those that look alike, and the last ones.
    """
    workers.lend()
    with workers.keeping() as lines:
        return call(*arguments), lines


def _got(ray: Any, reference: Any) -> Any:
    try:
        found, lines = ray.get(reference)
    except ray.exceptions.RayError as error:
        print(f"error: a job was lost: {type(error).__name__}", file=sys.stderr)
        return error
    for line, handle in lines:
        workers.say(line, handle)
    return found


class RayLauncher(Launcher):
    """Hydra's jobs as Ray tasks.

    hydra-ray-launcher 1.2.2 asks for cloudpickle < 3, which joblib 1.6 no longer works with, and for Ray's dashboard;
    this one needs plain ``ray``.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options

    def setup(self, *, hydra_context: Any, task_function: Any, config: DictConfig) -> None:
        self._context, self._task, self._config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list[JobReturn]:
        setup_globals()
        hydra_node = self._config.hydra
        configure_log(hydra_node.hydra_logging, hydra_node.verbose)
        Path(str(hydra_node.sweep.dir)).mkdir(parents=True, exist_ok=True)
        state = Singleton.get_state()
        calls = [
            (execute_job, (initial_job_idx + k, list(words), self._context, self._config, self._task, state))
            for k, words in enumerate(job_overrides)
        ]
        options = {key: OmegaConf.to_container(v) if OmegaConf.is_config(v) else v for key, v in self._options.items()}
        return [
            JobReturn(_return_value="lost", status=JobStatus.COMPLETED) if isinstance(one, Exception) else one
            for one in _with_ray(calls, options)
        ]


def execute_job(
    number: int, overrides: list[str], context: Any, config: DictConfig, task: Callable[..., Any], state: Any
) -> JobReturn:
    """One job of Hydra's, in a worker."""
    setup_globals()
    Singleton.set_state(state)
    job = context.config_loader.load_sweep_config(config, overrides)
    with open_dict(job):
        job.hydra.job.id = f"{job.hydra.job.name}_{number}"
        job.hydra.job.num = number
    HydraConfig.instance().set_config(job)
    return run_job(
        hydra_context=context,
        config=job,
        task_function=task,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
    )


def register() -> None:
    """Make the Ray launcher known to Hydra, which takes launchers from the package ``hydra_plugins`` only."""
    import hydra_plugins  # hydra-joblib-launcher brings it

    name = RAY.rpartition(".")[0]
    if name not in sys.modules:
        module = ModuleType(name, RayLauncher.__doc__)
        module.RayLauncher = RayLauncher  # type: ignore[attr-defined]
        RayLauncher.__module__ = name
        sys.modules[name] = module
        setattr(hydra_plugins, name.rpartition(".")[2], module)
    Plugins.instance().register(RayLauncher)


# -- Ctrl-C -----------------------------------------------------------------------------------------------------------
_signals: list[int] = []


def stop_signal() -> int | None:
    """The signal that asked the sweep of this process to stop."""
    return _signals[0] if _signals else None


@contextmanager
def in_charge() -> Iterator[None]:
    """This process may start a sweep; at the end the handlers of :func:`stop_at_checkpoints` are put back."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [(number, signal.getsignal(number)) for number in numbers]
    _signals.clear()
    with workers.owner():
        try:
            yield
        finally:
            for number, handler in before:
                if signal.getsignal(number) is not handler:
                    signal.signal(number, handler)


def stop_at_checkpoints(root: Path) -> None:
    """From now on Ctrl-C and SIGTERM let the jobs under way come to a checkpoint or their end; the second kills."""

    def ask(number: int, frame: FrameType | None) -> None:
        if _signals:
            raise KeyboardInterrupt if number == signal.SIGINT else Stopped(128 + number)
        _signals.append(number)
        workers.ask_to_stop(root)
        print(
            "dpml: the jobs under way come to their checkpoint or end, no other starts; once more stops at once.",
            file=sys.stderr,
        )

    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(number) is usual:
            signal.signal(number, ask)
