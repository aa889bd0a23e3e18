"""Every notebook runs from top to bottom in a fresh kernel, checks what it claims, and is stored with its figures."""

from __future__ import annotations

import ast
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def test_there_are_eight():
    assert [path.name[:2] for path in NOTEBOOKS] == [f"{number:02}" for number in range(1, 9)]


def figures(notebook) -> int:
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return sum("image/png" in output.get("data", {}) for output in outputs)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_and_is_stored_as_it_ran(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    stored = nbformat.read(path, as_version=4)
    nbformat.validate(stored)
    code = [cell for cell in stored.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))  # run once, in order
    assert not any(output.output_type == "error" for cell in code for output in cell.outputs)
    checks = [node for cell in code for node in ast.walk(ast.parse(cell.source)) if is_check(node)]
    assert len(checks) >= 3  # what a notebook says is measured in it
    assert "$" in "".join(cell.source for cell in stored.cells if cell.cell_type == "markdown")  # formulas

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("MPLBACKEND", raising=False)  # the kernel draws its figures into the notebook
    fresh = nbformat.read(path, as_version=4)
    NotebookClient(fresh, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert figures(fresh) == figures(stored) >= 2


def is_check(node: ast.AST) -> bool:
    called = node.func if isinstance(node, ast.Call) else None
    return isinstance(node, ast.Assert) or (isinstance(called, ast.Attribute) and called.attr.startswith("assert_"))
