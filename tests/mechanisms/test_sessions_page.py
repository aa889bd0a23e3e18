"""The code in docs/sessions.md runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "sessions.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)\n```", PAGE, re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_blocks_run(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(BLOCKS[number], f"docs/sessions.md block {number}", "exec"), {})
    printed = capsys.readouterr().out
    if number == 0:
        assert "(1, 0)-DP per record, add_remove" in printed
        assert "the session's budget refuses 'pure' (epsilon: needs 0.5, 0.8 of 1 spent, 0.2 left" in printed


def test_there_are_blocks() -> None:
    assert len(BLOCKS) == 2
