"""Reports about runs and sweeps: they read the files that a run left behind, never live objects.

``write_run_report(run_folder)`` and ``write_sweep_report(sweep_folder)`` are resolved lazily, so that importing the
package costs nothing until a report is drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpml.report.run import write_run_report
    from dpml.report.sweep import write_sweep_report

__all__ = ["write_run_report", "write_sweep_report"]

_HOME = {"write_run_report": "dpml.report.run", "write_sweep_report": "dpml.report.sweep"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'dpml.report' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
