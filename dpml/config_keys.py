"""Keys that no typed configuration has: refused with the nearest one that exists."""

from __future__ import annotations

import difflib
from dataclasses import fields, is_dataclass

from omegaconf import DictConfig, OmegaConf

from dpml.errors import ConfigError


def check_hydra_keys(node: DictConfig, prefix: str = "hydra.") -> None:
    """Refuse ``+hydra.KEY=…`` that Hydra's own typed configuration does not have; its free mappings stay free.

    Raises:
        ConfigError: the key, and the nearest one that exists.
    """
    kind = OmegaConf.get_type(node)
    if not is_dataclass(kind):
        return
    untyped = {"env"} if prefix == "hydra." else set()  # the one group of Hydra's that its own type leaves out
    refuse_unknown(prefix, [str(key) for key in node], {item.name for item in fields(kind)} | untyped)
    for key in node:
        child = node._get_node(key)
        if isinstance(child, DictConfig) and not (child._is_none() or child._is_missing()):
            check_hydra_keys(child, f"{prefix}{key!s}.")


def refuse_unknown(prefix: str, keys: list[str], known: set[str]) -> None:
    for key in keys:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f" Did you mean {prefix}{near[0]}?" if near else ""
            raise ConfigError(f"{prefix}{key} is unknown: there are {', '.join(sorted(known - {'name'}))}.{hint}")
