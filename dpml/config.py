"""Typed configuration: one dataclass per Hydra group, and the way from a composed config to objects.

Hydra refuses unknown keys and wrong types while composing; :func:`check` then builds everything that needs no record
(trainer, schema, file existence), so a bad value stops before any job runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf

from dpml.config_keys import check_hydra_keys as check_hydra_keys
from dpml.config_keys import refuse_foreign, refuse_unknown
from dpml.errors import ConfigError, invalid
from dpml.results import PATH_KEYS
from dpml.tracking import EXPERIMENT, check_store

if TYPE_CHECKING:  # loaded on first use: --help needs neither
    from dpml.data import PrivateData
    from dpml.trainer import PrivateTrainer


@dataclass
class DataConfig:
    """What all data sets share."""

    name: str = MISSING


@dataclass
class Adult(DataConfig):
    """The bundled Adult table."""

    name: str = "adult"


@dataclass
class Table(DataConfig):
    """A table of the user's with its schema."""

    name: str = "table"
    path: str | None = None
    schema: str | None = None
    test_path: str | None = None
    split_column: str | None = None
    test_fraction: float | None = None
    public_path: str | None = None


@dataclass
class CensusIncome(DataConfig):
    """Census-Income (KDD) from a folder with train.parquet and test.parquet."""

    name: str = "census_income"
    folder: str | None = None


@dataclass
class Digits(DataConfig):
    """scikit-learn's 8×8 digits."""

    name: str = "digits"
    features: str = "pixels"


@dataclass
class FashionMNIST(DataConfig):
    """Fashion-MNIST's IDX files."""

    name: str = "fashion_mnist"
    folder: str | None = None
    features: str = "pixels"
    cache: str | None = None


@dataclass
class Diabetes(DataConfig):
    """scikit-learn's diabetes progression, a small regression."""

    name: str = "diabetes"


@dataclass
class Synthetic(DataConfig):
    """A logistic model on uniform directions, from a public seed."""

    name: str = "synthetic"
    n: int = 20_000
    d: int = 20
    seed: int = 0


@dataclass
class ModelConfig:
    """A model by name."""

    name: str = MISSING


@dataclass
class LogReg(ModelConfig):
    """Binary logistic regression."""

    name: str = "logreg"


@dataclass
class Softmax(ModelConfig):
    """Multinomial logistic regression."""

    name: str = "softmax"


@dataclass
class LinearSVM(ModelConfig):
    """Linear support vector machine with a smoothed hinge."""

    name: str = "linear_svm"
    loss_parameter: float | None = None


@dataclass
class Ridge(ModelConfig):
    """Linear regression of a target with public bounds."""

    name: str = "ridge"


@dataclass
class Huber(ModelConfig):
    """Robust linear regression of a target with public bounds."""

    name: str = "huber"
    loss_parameter: float | None = None


@dataclass
class MLP(ModelConfig):
    """Fully connected network."""

    name: str = "mlp"
    hidden: list[int] = field(default_factory=lambda: [64])


@dataclass
class MethodConfig:
    """A way to train by name."""

    name: str = MISSING


@dataclass
class Auto(MethodConfig):
    """The first method with a proof for the model: objective, dp_gd, adassp or dp_sgd."""

    name: str = "auto"
    solution_norm: Any = "auto"


@dataclass
class DPSGD(MethodConfig):
    """Noisy clipped gradients of Poisson batches."""

    name: str = "dp_sgd"
    noise_multiplier: float | None = None
    max_grad_norm: float = 1.0
    expected_batch_size: int | None = None
    steps: int | None = None
    epochs: float | None = None
    learning_rate: Any = "auto"
    momentum: float = 0.9
    solution_norm: Any = "auto"
    micro_batch_size: Any = None
    checkpoint_every: int | None = None
    optimizer: str = "sgd"
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    bias_correction: bool = True
    weight_decay: float = 0.0
    schedule: str = "linear"
    warmup_steps: int = 0
    averaging: str = "none"
    averaging_share: float = 0.5
    clipping: str = "flat"
    target_quantile: float = 0.5
    clip_learning_rate: float = 0.2
    count_noise: float | None = None
    sampling: str = "poisson"
    secure_noise: bool = True
    gradients: str = "auto"


@dataclass
class Output(MethodConfig):
    """Noise on the regularised minimum."""

    name: str = "output"
    solution_norm: Any = "auto"
    regularization: Any = "auto"
    variant: str = "default"


@dataclass
class Objective(MethodConfig):
    """Noise in the objective."""

    name: str = "objective"
    solution_norm: Any = "auto"
    regularization: Any = "auto"
    variant: str = "default"


@dataclass
class DPGD(MethodConfig):
    """Noisy gradients of all records, step after step."""

    name: str = "dp_gd"
    max_grad_norm: float = 1.0
    steps: int | None = None
    learning_rate: Any = "auto"
    momentum: float = 0.9
    solution_norm: Any = "auto"
    regularization: Any = "auto"


@dataclass
class AdaSSP(MethodConfig):
    """Noisy sufficient statistics of a linear regression."""

    name: str = "adassp"
    solution_norm: Any = "auto"
    regularization: Any = "auto"
    variant: str = "default"


@dataclass
class NonPrivate(MethodConfig):
    """No noise; public data only."""

    name: str = "nonprivate"


@dataclass
class SharesConfig:
    """Parts of epsilon for what a run does beside its training; 0: no such stage."""

    bounds: float = 0.0
    categories: float = 0.0
    labels: float = 0.0
    center: float = 0.0
    metrics: float = 0.0


@dataclass
class PrivacyConfig:
    """The budget and what it means."""

    epsilon: float | None = 1.0
    delta: float | None = None
    neighboring_relation: str = "add_remove"
    accountant: str = "best"
    dataset_ledger: str | None = None
    dataset_epsilon: float | None = None
    dataset_delta: float | None = None
    dataset_filter: str = "basic"
    shares: SharesConfig = field(default_factory=SharesConfig)


@dataclass
class GuidanceConfig:
    """The sample-size rule."""

    excess_risk: float = 0.05
    enforce: bool = False


@dataclass
class TrackingConfig:
    """Where else a finished run's release is logged."""

    mlflow: str | None = None
    experiment: str = EXPERIMENT


@dataclass
class Config:
    """The root."""

    data: DataConfig = MISSING
    model: ModelConfig = MISSING
    method: MethodConfig = MISSING
    privacy: PrivacyConfig = MISSING
    guidance: GuidanceConfig = MISSING
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    device: str = "auto"
    seed: int = 0
    verbose: bool = True
    report: bool = True


GROUPS: dict[str, dict[str, type]] = {
    "data": {
        "adult": Adult,
        "table": Table,
        "census_income": CensusIncome,
        "digits": Digits,
        "diabetes": Diabetes,
        "fashion_mnist": FashionMNIST,
        "synthetic": Synthetic,
    },
    "model": {
        "logreg": LogReg,
        "softmax": Softmax,
        "linear_svm": LinearSVM,
        "ridge": Ridge,
        "huber": Huber,
        "mlp": MLP,
    },
    "method": {
        "auto": Auto,
        "dp_sgd": DPSGD,
        "output": Output,
        "objective": Objective,
        "dp_gd": DPGD,
        "adassp": AdaSSP,
        "nonprivate": NonPrivate,
    },
    "privacy": {"default": PrivacyConfig},
    "guidance": {"default": GuidanceConfig},
    "tracking": {"default": TrackingConfig},
}


def register() -> None:
    """Put the typed schemas where the YAML files find them (``schema_<name>``)."""
    store = ConfigStore.instance()
    store.store(name="schema_config", node=Config, provider="dpml")
    for group, members in GROUPS.items():
        for name, node in members.items():
            store.store(group=group, name=f"schema_{name}", node=node, provider="dpml")


def config_folder() -> Path:
    """The folder of the YAML files: beside this file in a wheel, one level up in a checkout."""
    here = Path(__file__).resolve().parent
    for candidate in (here / "configs", here.parent / "configs"):
        if (candidate / "config.yaml").is_file():
            return candidate
    raise ConfigError(
        f"configs/ was found neither in {here} nor beside it: the installation is damaged; install dpml anew."
    )


def rate(name: str, value: object) -> float | str:
    """``"auto"`` or a positive number, also when YAML read it as text."""
    if value == "auto":
        return "auto"
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):  # a whole number of hundreds of digits
        number = math.nan
    if isinstance(value, bool) or not math.isfinite(number) or number <= 0:
        raise invalid(name, value, '"auto" or a finite number > 0')
    return number


def build_data(config: DictConfig) -> PrivateData:
    """The declared data; reads schema and header, no record."""
    from dpml.data import PrivateData

    data = config.data
    match data.name:
        case "adult":
            return PrivateData.bundled("adult")
        case "table":
            if data.path is None:
                raise ConfigError("data.path is missing: data=table needs data.path=FILE (CSV, CSV.gz or Parquet).")
            return PrivateData.from_table(
                data.path,
                schema=data.schema,
                test_path=data.test_path,
                split_column=data.split_column,
                test_fraction=data.test_fraction,
                public_path=data.public_path,
            )
        case "census_income":
            if data.folder is None:
                raise ConfigError(
                    "data.folder is missing: data=census_income needs data.folder=FOLDER with train.parquet and "
                    "test.parquet."
                )
            return PrivateData.census_income(data.folder)
        case "digits":
            return PrivateData.digits(data.features)
        case "diabetes":
            return PrivateData.diabetes()
        case "fashion_mnist":
            from dpml.console import FeatureBar

            shown = FeatureBar() if config.verbose else None
            return PrivateData.fashion_mnist(data.folder, data.features, data.cache, progress=shown)
        case "synthetic":
            return PrivateData.synthetic(n=data.n, d=data.d, seed=data.seed)
    raise invalid("data.name", data.name, "one of " + ", ".join(GROUPS["data"]))


def build_trainer(config: DictConfig, run_dir: str | Path | None, **extra: Any) -> PrivateTrainer:
    """The trainer that a composed config describes.

    Raises:
        ConfigError: a value out of range, an unknown device, a method that does not fit the model.
    """
    from dpml.trainer import PrivateTrainer

    method, privacy, guidance = config.method, config.privacy, config.guidance
    arguments: dict[str, Any] = {k: method[k] for k in method if k != "name"}
    for name in ("learning_rate", "regularization", "solution_norm"):
        if name in arguments:
            zero = name == "regularization" and method.name == "dp_gd" and str(arguments[name]) in ("0", "0.0")
            arguments[name] = 0.0 if zero else rate(f"method.{name}", arguments[name])
    if "betas" in arguments:
        arguments["betas"] = tuple(float(beta) for beta in arguments["betas"])
    epsilon = privacy.epsilon
    if arguments.get("noise_multiplier") is not None and epsilon is not None:
        raise ConfigError(
            f"method.noise_multiplier = {arguments['noise_multiplier']!r} and privacy.epsilon = {epsilon!r} exclude "
            "each other: add privacy.epsilon=null to fix the noise and let ε follow."
        )
    if config.model.get("loss_parameter") is not None:
        arguments["loss_parameter"] = config.model.loss_parameter
    if config.model.name == "mlp":
        arguments["hidden"] = [int(width) for width in config.model.hidden]
    return PrivateTrainer(
        model=config.model.name,
        method=method.name,
        epsilon=epsilon,
        delta=privacy.delta,
        neighboring_relation=privacy.neighboring_relation,
        accountant=privacy.accountant,
        dataset_ledger=privacy.dataset_ledger,
        dataset_epsilon=privacy.dataset_epsilon,
        dataset_delta=privacy.dataset_delta,
        dataset_filter=privacy.dataset_filter,
        shares={str(name): float(share) for name, share in privacy.shares.items()},
        excess_risk=guidance.excess_risk,
        enforce_guidance=guidance.enforce,
        device=config.device,
        seed=config.seed,
        run_dir=run_dir,
        **arguments,
        **extra,
    )


def check_keys(config: DictConfig) -> None:
    """Refuse what ``+key=value`` smuggled past Hydra: keys that no schema knows, also those of another method.

    Raises:
        ConfigError: the key, and the nearest one that exists.
    """
    known = {item.name for item in fields(Config)}
    refuse_unknown("", [str(key) for key in config], known)
    for group, members in GROUPS.items():
        node = config[group]
        name = str(node.get("name", "default"))
        if name not in members:
            raise invalid(f"{group}.name", name, f"one of {', '.join(members)}", f"Choose with {group}=NAME.")
        refuse_foreign(group, name, [str(key) for key in node], members)


def public_text(config: DictConfig) -> str:
    """The YAML of ``release/config.yaml``: as composed, but with the custodian's paths cut down to file names."""
    published = config.copy()
    for key in PATH_KEYS:
        value = OmegaConf.select(published, key)
        if value is not None:
            OmegaConf.update(published, key, Path(str(value)).name)
    return OmegaConf.to_yaml(published)


def check(config: DictConfig) -> None:
    """Everything that can be wrong without reading a record: keys, trainer, schema, files, batch size, δ.

    Raises:
        DpmlError: what is wrong, and the way out.
    """
    missing = sorted(str(key) for key in OmegaConf.missing_keys(config) if not str(key).startswith("hydra"))
    if missing:
        raise ConfigError(f"no value for {', '.join(missing)}: set it on the command line.")
    check_keys(config)
    check_store(config.tracking.mlflow)
    trainer = build_trainer(config, run_dir=None)
    trainer.check(build_data(config))
