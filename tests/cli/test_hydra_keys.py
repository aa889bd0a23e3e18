"""Keys below ``hydra.`` that Hydra does not have: refused before anything is written, like those of dpml."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

RUN = (
    "data=synthetic", "data.n=400", "data.d=3", "privacy.delta=1e-4", "method=output", "verbose=false", "report=false",
)  # fmt: skip


@pytest.mark.parametrize(
    ("word", "match"),
    [
        ("+hydra.foo=1", "hydra.foo is unknown"),
        ("+hydra.run.dirr=x", r"hydra.run.dirr is unknown: there are dir. Did you mean hydra.run.dir\?"),
        ("+hydra.job.foo=1", "hydra.job.foo is unknown"),
        ("+hydra.sweeper.foo=1", "hydra.sweeper.foo is unknown"),
    ],
)
@pytest.mark.parametrize("sweep", [(), ("-m",)])
def test_keys_that_hydra_does_not_have_are_refused(
    cli: Any, tmp_path: Path, word: str, match: str, sweep: tuple[str, ...]
) -> None:
    status, out, err = cli(*sweep, *RUN, word)
    assert status == 1
    assert re.search(match, err)
    assert "Traceback" not in out + err
    assert not list(tmp_path.iterdir()), "a refused run left files"


def test_hydras_free_mappings_stay_free(cli: Any, tmp_path: Path) -> None:
    words = ("+hydra.job.env_set.DPML_TEST_WORD=1", "+hydra.job_logging.loggers.mine.level=INFO")
    status, _, err = cli(*RUN, *words)
    assert status == 0, err
