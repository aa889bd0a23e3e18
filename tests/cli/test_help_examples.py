"""The examples that the help texts show are run, or composed and checked as before a run."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import hydra
import pytest
from help_checks import MODULES, SUBVERBS, examples, shown_by
from hydra.core.global_hydra import GlobalHydra
from small_tables import people, write_people

from dpml import config as configuration


@pytest.fixture(scope="module")
def helps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    lines = [[f"dpml.{verb}", "--help"] for verb in MODULES]
    lines += [[f"dpml.{verb}", part, "--help"] for verb, parts in SUBVERBS.items() for part in parts]
    lines += [["dpml", "--help"], ["dpml.train", "--help"]]
    shown, _ = shown_by(lines, tmp_path_factory.mktemp("helps"))
    return {line: text for line, (_, text) in shown.items()}


def test_examples_of_the_small_commands_run(cli: Any, tmp_path: Path, helps: dict[str, str]) -> None:
    """A run and a sweep lie where the examples say; every example gives status 0 (account's verbs: test_account.py)."""
    frame = people().rename(columns={"label": "income"})
    write_people(tmp_path, frame, target={"name": "income", "classes": ["no", "yes"]})
    run, sweep = tmp_path / "outputs/2026-01-31/12-00-00", tmp_path / "multirun/2026-01-31/12-00-00"
    words = (
        "data=table", "data.path=people.csv", "data.schema=people.json", "privacy.delta=1e-4", "method=objective",
        "verbose=false", "report=false",
    )  # fmt: skip
    cap = ("privacy.dataset_ledger=people.ledger", "privacy.dataset_epsilon=4", "privacy.dataset_delta=1e-3")
    assert cli(*words, f"hydra.run.dir={run}", *cap)[0] == 0
    assert cli("-m", *words, "hydra/launcher=basic", f"hydra.sweep.dir={sweep}")[0] == 0
    frame[:7].to_csv(tmp_path / "new.csv", index=False)
    frame[:7].to_parquet(tmp_path / "new.parquet")
    (tmp_path / "people.json").rename(tmp_path / "declared.json")
    done = 0
    for line, text in helps.items():
        if line.startswith(("dpml --help", "dpml.train", "dpml.account ")):
            continue
        for verb, *rest in examples(text):
            if verb == "train":
                continue
            if (verb, *rest[:1]) == ("schema", "draft") and (tmp_path / "people.json").exists():
                (tmp_path / "people.json").unlink()
            if (verb, *rest[:1]) == ("schema", "check"):
                shutil.copy(tmp_path / "declared.json", tmp_path / "people.json")
            assert MODULES[verb].main(rest) == 0, (line, rest)
            done += 1
    assert done == 18
    assert (tmp_path / "scores.csv").read_text().count("\n") == 8
    assert (tmp_path / "n.png").read_bytes().startswith(b"\x89PNG")


def test_examples_of_the_console_script_run_in_their_order(cli: Any, tmp_path: Path, helps: dict[str, str]) -> None:
    people().to_csv(tmp_path / "people.csv", index=False)
    found = examples(helps["dpml --help"])
    assert [words[0] for words in found] == ["train", "verify", "schema", "account", "sample_size"]
    for verb, *rest in found:
        status = cli(*rest)[0] if verb == "train" else MODULES[verb].main(rest)
        assert status == 0, (verb, rest)


def test_examples_of_train_can_all_be_trained(
    tmp_path: Path, helps: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is composed and checked as before a run, every job of a sweep; README's tests train some of them."""
    monkeypatch.chdir(tmp_path)
    table, declared = write_people(tmp_path, n_declared=36_000)
    table.rename("my.csv")
    declared.rename("my.json")
    GlobalHydra.instance().clear()
    configuration.register()
    checked = 0
    with hydra.initialize_config_dir(str(configuration.config_folder()), version_base="1.3"):
        for verb, *words in examples(helps["dpml.train --help"]):
            if verb != "train" or words[0].startswith("resume"):
                continue
            choices = [[word] for word in words if word != "-m"]
            if "-m" in words:
                parts = [word.partition("=") for (word,) in choices]
                choices = [[f"{key}={value}" for value in values.split(",")] for key, _, values in parts]
            for job in itertools.product(*choices):
                if not any(word.startswith("+sweep=") for word in job):
                    configuration.check(hydra.compose("config", overrides=list(job)))
                checked += 1
    assert checked >= 12
