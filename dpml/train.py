"""``python -m dpml.train``: compose a config, train, write the run folder; with ``-m`` a sweep.

Hydra composes and schedules; everything that touches data is in :mod:`dpml.trainer`.  A job that fails keeps its
traceback in its own ``private/``, the others go on, and the exit status says that something failed.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # --help, before the imports that take seconds
    from dpml.spinning import sleep_soon
    from dpml.train_help import show_help

    show_help(sys.argv[1:])
    sleep_soon()

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from dpml import config as configuration
from dpml import launching, processes, resume_command, sweeps, workers
from dpml.composition_faults import as_config_errors, fault_text
from dpml.errors import ConfigError, DpmlError
from dpml.jobs import failures, run_job
from dpml.train_help import check_words


class RunCallback(Callback):
    """Checks before Hydra writes anything; for a sweep all jobs before job 0, then ``sweep.json`` and the report.

    Hydra turns an exception of a callback into a warning and goes on, so a fault leaves as SystemExit.
    """

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        """A single run: nothing is written, not even its folder, when something is wrong."""
        try:
            configuration.check_hydra_keys(config.hydra)
            configuration.check(sweeps.job_of(config))
            sweeps.empty_folder("hydra.run.dir", Path(str(config.hydra.run.dir)))
        except (DpmlError, OmegaConfBaseException) as error:  # an interpolation that leads nowhere
            text = fault_text(error) if isinstance(error, OmegaConfBaseException) else error
            print(f"error: {text}", file=sys.stderr)
            raise SystemExit(1) from error

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Compose and check every job; the first fault stops the sweep before anything runs."""
        try:
            root = sweeps.start(config)
        except (DpmlError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            raise SystemExit(1) from error
        print(f"sweep → {root}")

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        """Summary, plot and report of the sweep."""
        try:
            sweeps.finish(Path(str(config.hydra.sweep.dir)))
        except Exception as error:
            failures.append(str(config.hydra.sweep.dir))
            print(f"error: the sweep's report could not be written: {type(error).__name__}: {error}", file=sys.stderr)


# -- entry ------------------------------------------------------------------------------------------------------------
def main() -> int:
    """Exit status 0, or 1 if anything failed (Hydra itself exits with 1 on a bad command line)."""
    with launching.in_charge():
        status = _main()
        stopped = launching.stop_signal()
        return status if stopped is None else 128 + stopped


def _main() -> int:
    configuration.register()
    launching.register()
    failures.clear()
    resumed = [text.split("=", 1)[1] for text in sys.argv[1:] if text.startswith("resume_sweep=")]
    sweeps.forget()
    try:
        if processes.world_size() > 1:
            _refuse_flags(sys.argv[1:])
            if processes.rank() > 0:
                return follow_job(sys.argv[1:])
        if resumed:
            return sweeps.resume(Path(resumed[0]), _words_beside(sys.argv[1:]))
        if resume_command.is_asked(sys.argv[1:]):
            return resume_command.resume_run(sys.argv[1:])
        _check_names(sys.argv[1:])
        try:
            with as_config_errors():
                hydra.main(version_base="1.3", config_path=str(configuration.config_folder()), config_name="config")(
                    _task
                )()
        except (SystemExit, BrokenProcessPool):  # Hydra turns most exceptions into the first, not all
            if not sweeps.rescue():
                raise
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
    """A job of Hydra's, in this process or in a worker of a sweep."""
    composed = HydraConfig.get()
    folder = Path(composed.runtime.output_dir)
    with workers.one_job(folder.parent) as may_start:
        if not may_start:
            return "stopped"
        return launching.quietly_stopped(lambda: run_job(config, folder, list(composed.overrides.task)))


def _words_beside(arguments: Sequence[str]) -> list[str]:
    """What stands beside ``resume_sweep=FOLDER``: words that say where the jobs run."""
    words = [text for text in arguments if not text.startswith("resume_sweep=")]
    if len(words) + 1 != len(arguments) or not all(map(sweeps.is_launcher_word, words)):
        raise ConfigError(
            "resume_sweep=FOLDER stands alone: the jobs run with the overrides that the sweep was started with. Only "
            "hydra/launcher=NAME and hydra.launcher.KEY=VALUE, which say where they run, may be others."
        )
    return words


def _check_names(arguments: Sequence[str]) -> None:
    """Misspelt group choices get a near match; Hydra's own message lists all."""
    import difflib

    check_words(arguments)
    for text in arguments:
        key, _, value = text.lstrip("+").partition("=")
        folder = configuration.config_folder() / key
        if key in ("experiment", "sweep") and not text.startswith("+"):
            raise ConfigError(f"{text!r}: {key} is added with a plus sign: +{key}={value}")
        if not value or not folder.is_dir() or key.startswith(("-", "hydra/")):
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
