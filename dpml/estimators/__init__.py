"""scikit-learn estimators over the same methods as ``PrivateTrainer``, and the public schema as a transformer."""

from .kmeans import DPKMeans
from .linear import DPLinearSVC, DPLogisticRegression, DPRidge
from .schema_encoder import SchemaEncoder
from .sgd import DPSGDClassifier, DPSGDRegressor

__all__ = [
    "DPKMeans",
    "DPLinearSVC",
    "DPLogisticRegression",
    "DPRidge",
    "DPSGDClassifier",
    "DPSGDRegressor",
    "SchemaEncoder",
]
