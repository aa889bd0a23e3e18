"""``python -m dpml.predict RUN/release new.csv -o scores.csv``: score a new table with a released model."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dpml.errors import DataError, DpmlError, RunFolderError

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
        scores = _scores(model, table)
    except DpmlError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    try:
        scores.to_csv(arguments.output or sys.stdout, index_label="row")
        sys.stdout.flush()
    except BrokenPipeError:  # the reader (head, say) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        print(f"error: cannot write {arguments.output!r}: {error.strerror or error}", file=sys.stderr)
        return 1
    if arguments.output:
        print(f"{len(scores)} rows scored → {arguments.output}")
    return 0


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
