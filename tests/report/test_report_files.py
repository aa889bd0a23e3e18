"""The files of a run's report: one page, no network, the same bytes from the same files, nothing private."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

from dpml.report import write_run_report

WRITTEN = ("report.html", "model_card.md", "report.json", "epsilon_vs_step.png")
Make = Callable[..., Path]
Read = Callable[[Path], Any]


def test_one_file_that_asks_the_network_for_nothing(read_page: Read, run_folder: Make) -> None:
    page = read_page(write_run_report(run_folder()))
    assert page.references
    assert all(one.startswith(("data:", "#")) for one in page.references)
    assert page.images
    assert all(image["alt"] and len(image["alt"]) > 30 for image in page.images)
    assert page.open == []


def test_same_files_same_bytes_and_settings_of_the_user_do_not_matter(run_folder: Make) -> None:
    folder = run_folder()
    page, plot = write_run_report(folder), folder / "release" / "epsilon_vs_step.png"
    before = page.read_bytes(), plot.read_bytes()
    with matplotlib.rc_context({"font.size": 31, "axes.facecolor": "red", "svg.hashsalt": "other"}):
        write_run_report(folder / "release")
        assert matplotlib.rcParams["font.size"] == 31
    assert (page.read_bytes(), plot.read_bytes()) == before
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_reads_nothing_private(run_folder: Make, tmp_path: Path) -> None:
    folder = run_folder()
    before = write_run_report(folder).read_bytes()
    for name in ("status.json", "log.txt", "metrics.json"):
        (folder / "private" / name).write_text('{"status": "failed", "error": "SECRET4711", "accuracy": 0.4711}')
    assert write_run_report(folder).read_bytes() == before
    assert b"4711" not in before
    assert str(tmp_path).encode() not in before


def test_the_same_release_elsewhere_gives_the_same_bytes(run_folder: Make, tmp_path: Path) -> None:
    """Another machine has release/ alone, in another folder, with other dates, and no more than that."""
    folder = run_folder(overrides=["+experiment=logreg", "data.path=/home/someone/people.csv"])
    write_run_report(folder)
    elsewhere = tmp_path / "elsewhere" / "copy"
    shutil.copytree(folder / "release", elsewhere)
    for name in WRITTEN:
        (elsewhere / name).unlink()
    for path in elsewhere.iterdir():
        os.utime(path, (1, 1))
    code = "import sys; from dpml.report.__main__ import main; sys.exit(main(sys.argv[1:]))"
    environment = {**os.environ, "TZ": "Asia/Tokyo", "LC_ALL": "C", "PYTHONHASHSEED": "77", "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code, str(elsewhere)], check=True, env=environment, cwd=tmp_path)
    for name in WRITTEN:
        first, second = (folder / "release" / name).read_bytes(), (elsewhere / name).read_bytes()
        assert first == second, name
        assert b"someone" not in first
        assert str(tmp_path).encode() not in first
    assert sorted(path.name for path in elsewhere.iterdir()) == sorted(
        path.name for path in (folder / "release").iterdir()
    )
