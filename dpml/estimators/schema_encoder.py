"""``SchemaEncoder``: the public encoding of a table as a scikit-learn transformer; nothing is fitted on the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from dpml.arguments import is_positive
from dpml.data import Encoder, Schema
from dpml.data.cells import objects_of
from dpml.data.columns import IgnoredColumn, make_column
from dpml.data.schema import as_schema
from dpml.errors import ConfigError, DataError, invalid


class SchemaEncoder(TransformerMixin, BaseEstimator):
    """Features of a table by public knowledge alone: splines on declared bounds, indicators of declared categories.

    ``fit`` looks at the names and the number of columns and at nothing else.  Each row's features depend on that row
    only, so that the transformer in front of a private estimator costs no budget.  The features end with a constant
    column, and every row is clipped to ``norm_bound``::

        make_pipeline(
            SchemaEncoder("people.json", sparse_output=True),
            DPLogisticRegression(classes=["no", "yes"], norm_bound=1.0, n_declared=36_000, fit_intercept=False),
        ).fit(frame, frame["bought"])

    Parameters:
        schema: a :class:`~dpml.data.Schema`, its JSON object, or the path of its file.  Columns of the table that it
            does not name, or ignores, are not looked at, and a data frame to be transformed need not have them (the
            target, say).  ``None``: every column is encoded by ``default``.
        default: without a schema, the entry that describes every column, for example
            ``{"kind": "numeric", "bounds": [0, 1], "knots": 6}``.
        norm_bound: public bound on the L2 norm of an encoded row; ``None`` takes the schema's (1 without one).
        spline: ``False`` encodes every numeric column by min-max, whatever the schema asks for.
        sparse_output: ``transform`` gives a CSR array (``scipy.sparse.csr_array``) instead of an array.

    Attributes after ``fit``:
        encoder_ (a :class:`dpml.data.Encoder`), n_features_in_, feature_names_in_ (with a data frame).

    Invalid cells become what the schema's ``on_invalid`` says; a record that it drops becomes a row of zeros, which
    has no influence on a linear model without a further intercept.  Arrays and lists of rows are read by position:
    their columns are those of the schema in its order, ignored ones included.  Each cell of a list is read as it is.
    """

    def __init__(
        self,
        schema: Schema | Mapping[str, Any] | str | Path | None = None,
        *,
        default: Mapping[str, Any] | None = None,
        norm_bound: float | None = None,
        spline: bool = True,
        sparse_output: bool = False,
    ) -> None:
        self.schema = schema
        self.default = default
        self.norm_bound = norm_bound
        self.spline = spline
        self.sparse_output = sparse_output

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        tags.transformer_tags.preserves_dtype = ["float64"]
        return tags

    def fit(self, X: Any, y: Any = None) -> SchemaEncoder:
        """Note the columns' names; no cell is read.

        Raises:
            ConfigError: neither or both of ``schema`` and ``default`` are given, or ``norm_bound`` is out of range.
            SchemaError: a faulty schema.
            DataError: the table lacks a column that the schema declares.
        """
        if (self.schema is None) == (self.default is None):
            raise ConfigError(
                "schema must be declared, or default in its place (one of the two): bounds and categories are not read "
                "off the data, since that would cost privacy. Example: "
                'SchemaEncoder(default={"kind": "numeric", "bounds": [0, 1]}).'
            )
        declared = None if self.schema is None else as_schema(self.schema)
        frame = self._frame(X, declared, reset=True)
        schema = self._with_bound(self._by_default(list(frame.columns)) if declared is None else declared)
        encoder = Encoder(schema, spline=self.spline)
        encoder.transform(frame.iloc[:0])  # are the columns there?
        self.encoder_ = encoder
        return self

    def transform(self, X: Any) -> Any:
        """Features (n, d') float64 of the table ``X``: an array, a CSR array, or what ``set_output`` asks for."""
        check_is_fitted(self, "encoder_")
        frame = self._frame(X, self.encoder_.schema, reset=False)
        return self.encoder_.transform(frame, sparse=self.sparse_output)[0]

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names (d',) of the features: ``column[knot]``, ``column=category``, and the constant last.

        Raises:
            ValueError: ``input_features`` are not the columns that ``fit`` saw.
        """
        check_is_fitted(self, "encoder_")
        if input_features is not None:
            names = getattr(self, "feature_names_in_", None)
            if names is not None and list(input_features) != list(names):
                raise ValueError("input_features is not equal to feature_names_in_")
            if len(input_features) != self.n_features_in_:
                raise ValueError(
                    "input_features should have length equal to number of features "
                    f"({self.n_features_in_}), got {len(input_features)}"
                )
        return np.asarray(self.encoder_.feature_names, dtype=object)

    def _frame(self, X: Any, schema: Schema | None, *, reset: bool) -> pd.DataFrame:
        """The table as a data frame; the columns of an array get their names by position."""
        if isinstance(X, pd.DataFrame) or (hasattr(X, "to_pandas") and hasattr(X, "__dataframe__")):
            frame = X if isinstance(X, pd.DataFrame) else X.to_pandas()  # another library's data frame
            if not reset and self.schema is not None and schema is not None:
                read = [column.name for column in schema.columns if not isinstance(column, IgnoredColumn)]
                if set(read) <= set(frame.columns):  # what is not looked at need not be there again
                    return frame[read]
            validate_data(self, X, reset=reset, skip_check_array=True)
            return frame
        if isinstance(X, list | tuple):
            X = objects_of(X)  # numpy's common type would let one cell decide how all others are read
        values = validate_data(self, X, reset=reset, dtype=None, ensure_all_finite=False)
        width = values.shape[1]
        names = [f"x{index}" for index in range(width)] if schema is None else [c.name for c in schema.columns]
        if len(names) != width:
            raise DataError(
                f"X is an array with {width} columns, the schema declares {len(names)}. Pass a data frame, or an array "
                "with the schema's columns in its order."
            )
        return pd.DataFrame(values, columns=names, dtype=object if values.dtype.kind == "O" else None)

    def _by_default(self, names: list[Any]) -> Schema:
        """The schema without a target in which ``default`` describes every column."""
        columns = tuple(make_column(str(name), self.default) for name in names)
        if all(isinstance(column, IgnoredColumn) for column in columns):
            raise ConfigError(f"default = {self.default!r} ignores every column: declare numbers or categories.")
        return Schema(1, "(none)", (), columns)

    def _with_bound(self, schema: Schema) -> Schema:
        if self.norm_bound is None:
            return schema
        if not is_positive(self.norm_bound):
            raise invalid("norm_bound", self.norm_bound, "a finite number > 0, or None for the schema's")
        return replace(schema, norm_bound=float(self.norm_bound))
