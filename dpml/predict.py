"""``python -m dpml.predict RUN/release new.csv -o scores.csv``: score a new table with a released model."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dpml.errors import DataError, DpmlError, RunFolderError
from dpml.pipes import reader_may_leave

if TYPE_CHECKING:
    import pandas as pd

    from dpml.release import PrivateModel

EXAMPLES = """examples:
  python -m dpml.predict outputs/2026-01-31/12-00-00/release new.csv -o scores.csv
  python -m dpml.predict outputs/2026-01-31/12-00-00 new.parquet                     scores on standard output"""


def main(argv: list[str] | None = None) -> int:
    """Exit status 0, or 1 with a message."""
    parser = argparse.ArgumentParser(
        prog="python -m dpml.predict",
        description="Score a new table with a released model. Post-processing: it costs no privacy budget.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("release", help="a run folder or its release/")
    parser.add_argument("table", help="CSV, CSV.gz or Parquet with the schema's columns (the target may be missing)")
    parser.add_argument("-o", "--output", help="CSV file for the scores; default: standard output")
    arguments = parser.parse_args(argv)
    from dpml.data import read_table  # pandas: not for --help
    from dpml.release import load

    try:
        if not Path(arguments.release).is_dir():
            raise RunFolderError(f"there is no folder {arguments.release!r}. Give a run folder or its release/.")
        model = load(arguments.release)
        if model.schema is None:
            raise DataError("this model was trained on arrays, not on a table: use dpml.load(...).predict(array).")
        columns = [name for name, column in model.schema["columns"].items() if column["kind"] != "ignore"]
        table = read_table(Path(arguments.table), columns)
        scores, strange = _scores(model, table), _strange_cells(model, table)
    except DpmlError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    try:
        if arguments.output:
            scores.to_csv(arguments.output, index_label="row")
        elif sys.stdout is not None:
            with reader_may_leave():
                scores.to_csv(sys.stdout, index_label="row")
    except OSError as error:
        print(f"error: cannot write {arguments.output!r}: {error.strerror or error}", file=sys.stderr)
        return 1
    if strange:
        print(f"note: cells that the schema does not allow, scored as in training: {strange}", file=sys.stderr)
    if arguments.output:
        print(f"{len(scores)} rows scored → {arguments.output}")
    return 0


def _strange_cells(model: PrivateModel, table: pd.DataFrame) -> str:
    """How many cells of each column are clamped, zeros or "other": "age 12, town 3"."""
    from dpml.data import Schema
    from dpml.data.check import broken
    from dpml.data.columns import IgnoredColumn

    columns = [c for c in Schema.from_dict(dict(model.schema or {})).columns if not isinstance(c, IgnoredColumn)]
    counts = {column.name: int(broken(column, table[column.name])[0].sum()) for column in columns}
    return ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)


def _scores(model: PrivateModel, table: pd.DataFrame) -> pd.DataFrame:
    """``prediction``, and for classes a probability each, or the scores of a model without probabilities."""
    import pandas as pd

    rows = model.features(table)
    predictions = model.predictions(rows)
    if model.is_regression:
        return pd.DataFrame({"prediction": predictions})
    if model.kind == "linear_svm":
        values = model.decision_values(rows).reshape(len(predictions), -1)
        labels = model.classes if values.shape[1] > 1 else model.classes[1:]
        columns = {f"score {label}": values[:, k] for k, label in enumerate(labels)}
    else:
        probabilities = model.probabilities(rows)
        columns = {f"probability {label}": probabilities[:, k] for k, label in enumerate(model.classes)}
    return pd.DataFrame({"prediction": [model.classes[k] for k in predictions], **columns})


if __name__ == "__main__":
    sys.exit(main())
