"""Keys that no typed configuration has: refused with the nearest one that exists."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
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


def refuse_foreign(group: str, member: str, keys: list[str], members: Mapping[str, type]) -> None:
    """Refuse keys of ``group=member`` that it does not have, with the members of the group that have them.

    Raises:
        ConfigError: the key, what there is, and the way out.
    """
    known = {item.name for item in fields(members[member])}
    for key in keys:
        others = [name for name, kind in members.items() if key in {item.name for item in fields(kind)}]
        if key in known or not others:
            refuse_unknown(f"{group}.", [key], known)
            continue
        has = f"has {', '.join(sorted(known - {'name'}))}" if known - {"name"} else "has none"
        raise ConfigError(
            f"{group}.{key} is no key of {group}={member}, which {has}. It is one of {group}={' and '.join(others)}: "
            f"add {group}={others[0]}, or leave {group}.{key} out."
        )


def foreign_key(text: str, groups: Mapping[str, Mapping[str, type]]) -> tuple[str, str, str] | None:
    """(group, member, key) of Hydra's refusal to override a key that the chosen member of a group does not have."""
    found = re.search(r"Could not override '(\w+)\.(\w+)'.*not in '(\w+)'", text, re.DOTALL)
    if found is None or found.group(1) not in groups:
        return None
    group, key, kind = found.groups()
    member = next((name for name, node in groups[group].items() if node.__name__ == kind), None)
    return None if member is None else (group, member, key)
