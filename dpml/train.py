"""``python -m dpml.train``: compose a config, train, write the run folder; with ``-m`` a sweep.

Hydra composes and schedules; everything that touches data is in :mod:`dpml.trainer`.  A job that fails keeps its
traceback in its own ``private/``, the others go on, and the exit status says that something failed.
"""

from __future__ import annotations

import itertools
import json
import shlex
import sys
import traceback
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
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from dpml import config as configuration
from dpml.errors import ConfigError, DpmlError, RunFolderError
from dpml.release import RunFolder
from dpml.results import dumps, write_atomic
from dpml.trainer import Plan, PrivateTrainer, RunResult

SWEEP_FILE = "sweep.json"
SWEEP_FORMAT = 1

_failures: list[str] = []
"""Folders of the jobs of this process that failed; the exit status follows from it."""


# -- one job ----------------------------------------------------------------------------------------------------------
def run_job(config: DictConfig, folder: Path, overrides: Sequence[str], *, resume: bool = False) -> bool:
    """Train one configuration into ``folder``; returns whether it worked.

    Errors end here: the traceback (it may hold private values) goes to the job's ``private/``, and the console gets
    the message, which the custodian sees.
    """
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    claimed = False
    try:
        configuration.check(config)
        data = configuration.build_data(config)
        trainer = configuration.build_trainer(config, run_dir=folder)
        plan = trainer.plan(data)
        console.print(plan_table(plan))
        console.print(str(plan.guidance["text"]), markup=False)
        _refuse_used_folder(folder, resume)
        claimed = True
        write_status(folder, "running")
        with StepBar(config.verbose) as bar:
            if resume:
                result = PrivateTrainer.resume(folder, data, progress=bar, command=command_of(overrides))
            else:
                result = trainer.fit(
                    data, progress=bar, config=OmegaConf.to_yaml(config), command=command_of(overrides)
                )
        if config.report:
            from dpml.report import write_run_report

            write_run_report(folder)
            RunFolder.open(folder).link_to_top("report.html")
        write_status(folder, "done")
        console.print(result_table(result))
        return True
    except Exception as error:
        _failures.append(str(folder))
        expected = isinstance(error, DpmlError)
        if claimed or not (folder / "release").exists():
            write_status(folder, "failed", error)
            where = f" (traceback: {folder / 'private' / 'traceback.txt'})"
        else:
            where = ""
        message = str(error) if expected else f"{type(error).__name__}: {error}"
        print(f"error: {message}{where}", file=sys.stderr)
        return False


def command_of(overrides: Sequence[str]) -> str:
    """The command line that repeats a job (with fresh noise)."""
    kept = [text for text in overrides if not text.lstrip("+~").startswith("hydra.")]
    return shlex.join(["python", "-m", "dpml.train", *kept])


def _refuse_used_folder(folder: Path, resume: bool) -> None:
    if not resume and (folder / "release").exists():
        raise RunFolderError(
            f"{str(folder)!r} holds a run already; nothing was overwritten. Choose another hydra.run.dir."
        )


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


class StepBar:
    """Progress on standard error: step, ε so far, time left.  Silent when ``verbose`` is false."""

    def __init__(self, verbose: bool) -> None:
        self._bar = Progress(
            TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(),
            TextColumn("ε so far ≤ {task.fields[epsilon]:.4g}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            redirect_stdout=False,
            redirect_stderr=False,
            disable=not verbose,
        )
        self._task: Any = None

    def __enter__(self) -> StepBar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, step: int, steps: int, epsilon: float) -> None:
        if self._task is None:
            self._task = self._bar.add_task("train", total=steps, epsilon=epsilon)
        self._bar.update(self._task, completed=step, epsilon=epsilon)


def _grid(title: str, rows: Sequence[tuple[str, str]]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    return table


def plan_table(plan: Plan) -> Table:
    """The plan as a table."""
    return _grid("Plan (public knowledge only; no record has been read)", plan.rows())


def result_table(result: RunResult) -> Table:
    """What a person wants to know at the end."""
    guarantee, plan = result.guarantee, result.plan
    others = [
        f"{name} {series[-1]:.4g}"
        for name, series in (("RDP", result.trajectory.rdp), ("zCDP", result.trajectory.zcdp))
        if series
    ]
    rows = [
        ("ε", f"{guarantee.epsilon:.6g}" + (f"   (by {', by '.join(others)})" if others else "")),
        ("δ", f"{guarantee.delta:.3g}"),
        ("relation", f"{guarantee.neighboring_relation}, unit: one {guarantee.unit}"),
        (
            "accountant",
            f"{guarantee.accountant}" + (f" → {result.accountant_used}" if guarantee.accountant == "best" else ""),
        ),
        ("method", f"{plan.method}, {plan.model}, {plan.steps} noisy release{'s' if plan.steps != 1 else ''}"),
    ]
    if result.metrics:
        rows.append(("accuracy", f"{result.metrics['accuracy']:.4f}   ({result.metrics['source']})"))
        if "auc" in result.metrics:
            rows.append(("AUC", f"{result.metrics['auc']:.4f}"))
        if result.nonprivate:
            rows.append(("without privacy", f"{result.nonprivate['test_accuracy']:.4f}   (public data only)"))
    else:
        rows.append(("accuracy", "not published: no public test set (see private/diagnostics.json)"))
    guide = plan.guidance
    verdict = "enough" if guide["enough"] else f"too small by ×{guide['factor']:.3g}"
    rows.append(
        ("sample size", f"{verdict}: n = {guide['n_declared']:,}, the rule asks for {guide['required_n']:,} "
                        f"at α = {guide['excess_risk']:g}")
    )  # fmt: skip
    rows.append(("ledger", f"{result.ledger['count']} lines, head {str(result.ledger['head'])[:16]}…"))
    if result.run_dir is not None:
        here = Path.cwd()
        shown = result.run_dir.relative_to(here) if result.run_dir.is_relative_to(here) else result.run_dir
        rows.append(("files", str(shown)))
    return _grid("Result", rows)


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


class SweepCallback(Callback):
    """Checks a whole sweep before job 0, writes ``sweep.json``, and the report at the end."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Compose and check every job; the first fault stops the sweep before anything runs.

        Hydra turns an exception of a callback into a warning and goes on, so a fault leaves as SystemExit.
        """
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
            _failures.append(str(config.hydra.sweep.dir))
            print(f"error: the sweep's report could not be written: {type(error).__name__}: {error}", file=sys.stderr)


def _checked_sweep(config: DictConfig) -> Path:
    """Check all jobs of a sweep and write its ``sweep.json``; returns the sweep's folder."""
    root = Path(str(config.hydra.sweep.dir))
    if (root / SWEEP_FILE).exists():
        raise RunFolderError(
            f"hydra.sweep.dir = {str(root)!r} holds a sweep already; nothing was overwritten. "
            f"Choose another folder, or finish it with resume_sweep={root}."
        )
    jobs = sweep_jobs(list(config.hydra.overrides.task), config.hydra.sweeper.get("params"))
    loader = GlobalHydra.instance().config_loader()
    for number, overrides in enumerate(jobs):
        try:
            job = loader.load_configuration("config", overrides, run_mode=RunMode.RUN)
            OmegaConf.set_struct(job, False)
            job.pop("hydra", None)
            configuration.check(job)
        except (DpmlError, HydraException, OmegaConfBaseException) as error:
            raise ConfigError(
                f"job {number} of {len(jobs)} ({' '.join(overrides)}) cannot run, so no job was started: {error}"
            ) from error
    root.mkdir(parents=True, exist_ok=True)
    write_sweep(root, [{"number": k, "overrides": job, "folders": [str(k)]} for k, job in enumerate(jobs)])
    return root


def write_sweep(root: Path, jobs: Sequence[Mapping[str, Any]]) -> None:
    """``sweep.json``: which jobs there are and in which folders they ran."""
    write_atomic(root / SWEEP_FILE, dumps({"format": SWEEP_FORMAT, "jobs": list(jobs)}))


def read_status(folder: Path) -> str:
    """``"done"``, ``"failed"``, ``"running"`` (or killed) or ``"missing"``."""
    try:
        return str(json.loads((folder / "private" / "status.json").read_text("utf-8"))["status"])
    except (OSError, ValueError, KeyError, TypeError):
        return "missing"


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
        f"ε = {float(composed['epsilon']):.4g} at δ = {float(composed['delta']):.3g} (each job has its own ε; picking "
        "the best is not free)"
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
            f"run the rest with: python -m dpml.train resume_sweep={root}",
            file=sys.stderr,
        )
        _failures.append(str(root))


def resume_sweep(root: Path) -> int:
    """Run what ``root/sweep.json`` still misses; finished jobs are left alone.

    A killed DP-SGD job goes on from its checkpoint and ledger; any other unfinished job starts anew in a new folder,
    and what its old folder charged stays in the sweep's composed ε.
    """
    path = root / SWEEP_FILE
    try:
        jobs = json.loads(path.read_text("utf-8"))["jobs"]
        missing = [job for job in jobs if read_status(root / job["folders"][-1]) != "done"]
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
        if _can_go_on(folder) and run_job(config, folder, job["overrides"], resume=True):
            continue
        if folder.exists():
            job["folders"].append(f"{job['number']}-{len(job['folders'])}")
            write_sweep(root, jobs)
            folder = root / job["folders"][-1]
        run_job(config, folder, job["overrides"])
    finish_sweep(root)
    return 1 if any(read_status(root / job["folders"][-1]) != "done" for job in jobs) else 0


def _can_go_on(folder: Path) -> bool:
    return (folder / "private" / "checkpoint.safetensors").is_file() and not (folder / "release/result.json").exists()


# -- entry ------------------------------------------------------------------------------------------------------------
def main() -> int:
    """Exit status 0, or 1 if anything failed (Hydra itself exits with 1 on a bad command line)."""
    configuration.register()
    _failures.clear()
    resumed = [text.split("=", 1)[1] for text in sys.argv[1:] if text.startswith("resume_sweep=")]
    try:
        if resumed:
            if len(sys.argv) != 2:
                raise ConfigError(
                    "resume_sweep=FOLDER stands alone: the jobs run with the overrides that the sweep was started with."
                )
            return resume_sweep(Path(resumed[0]))
        _check_names(sys.argv[1:])
        hydra.main(version_base="1.3", config_path=str(configuration.config_folder()), config_name="config")(_task)()
    except DpmlError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 1 if _failures else 0


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
