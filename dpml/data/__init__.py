"""Data with declared public knowledge: schema, encoder, sources.  Imports no torch."""

from .columns import CategoricalColumn, IgnoredColumn, NumericColumn
from .encoder import Encoder
from .private_data import PrivateData, PublicInfo, Records
from .public_whitening import PublicWhitening
from .schema import Schema
from .table import read_table
from .transform import transform_array

__all__ = [
    "CategoricalColumn",
    "Encoder",
    "IgnoredColumn",
    "NumericColumn",
    "PrivateData",
    "PublicInfo",
    "PublicWhitening",
    "Records",
    "Schema",
    "read_table",
    "transform_array",
]
