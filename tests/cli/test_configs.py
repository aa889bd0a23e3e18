"""Every configuration composes; the experiments' composed configs are frozen in tests/golden/."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import hydra
import pytest
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from dpml import config as configuration

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
EXPERIMENTS = sorted(path.stem for path in (configuration.config_folder() / "experiment").glob("*.yaml"))


@pytest.fixture(autouse=True)
def composer() -> Iterator[None]:
    GlobalHydra.instance().clear()
    configuration.register()
    with hydra.initialize_config_dir(str(configuration.config_folder()), version_base="1.3"):
        yield


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_composed_experiment_is_the_frozen_one(name: str) -> None:
    composed = OmegaConf.to_container(hydra.compose("config", overrides=[f"+experiment={name}"]))
    frozen = OmegaConf.to_container(OmegaConf.load(GOLDEN / f"{name}.yaml"))
    assert composed == frozen


def test_every_experiment_has_a_golden_file() -> None:
    assert sorted(path.stem for path in GOLDEN.glob("*.yaml")) == EXPERIMENTS
    assert {"logreg", "mlp", "fashion_mnist_linear"} <= set(EXPERIMENTS)


@pytest.mark.parametrize("group", sorted(configuration.GROUPS))
def test_every_group_member_has_a_file_and_the_schema_s_defaults(group: str) -> None:
    files = {path.stem for path in (configuration.config_folder() / group).glob("*.yaml")}
    assert files == set(configuration.GROUPS[group])
    for name, node in configuration.GROUPS[group].items():
        composed = hydra.compose("config", overrides=[f"{group}={name}"])[group]
        assert OmegaConf.to_container(composed) == OmegaConf.to_container(OmegaConf.structured(node))


def test_an_experiment_yields_to_the_command_line() -> None:
    composed = hydra.compose("config", overrides=["+experiment=logreg", "method=objective", "privacy.epsilon=0.1"])
    assert composed.method.name == "objective"
    assert composed.privacy.epsilon == 0.1


def test_help_lists_exactly_the_choices_there_are() -> None:
    template = str(OmegaConf.load(configuration.config_folder() / "config.yaml").hydra.help.template)
    listed = {
        words[0].lstrip("+"): {word for word in words[1:] if word != "|"}
        for words in (line.split() for line in template.splitlines())
        if len(words) > 1 and (configuration.config_folder() / words[0].lstrip("+")).is_dir()
    }
    for group, names in listed.items():
        assert names == {path.stem for path in (configuration.config_folder() / group).glob("*.yaml")}, group
    assert {"data", "model", "method", "experiment", "sweep"} == set(listed)


@pytest.mark.parametrize(("name", "jobs"), [("epsilon", 4), ("epsilon_by_method", 12), ("epsilon_by_seed", 20)])
def test_a_sweep_config_gives_as_many_jobs_as_it_says(name: str, jobs: int) -> None:
    from dpml.sweeps import sweep_jobs

    sweep = hydra.compose("config", overrides=[f"+sweep={name}"], return_hydra_config=True).hydra
    assert sweep.mode.name == "MULTIRUN"
    assert sweep.launcher["_target_"].endswith("JoblibLauncher")
    found = sweep_jobs([f"+sweep={name}"], sweep.sweeper.params)
    assert len({tuple(job) for job in found}) == len(found) == jobs
    assert len(sweep_jobs([f"+sweep={name}", "privacy.epsilon=3"], sweep.sweeper.params)) == jobs // 4
