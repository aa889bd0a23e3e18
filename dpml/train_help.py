"""``python -m dpml.train [WORDS] --help`` before anything heavy is loaded: help and the composed values.

Hydra's own ``--help`` lists every group of every plugin, which takes seconds, though our text does not show them.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterator, Sequence
from string import Template
from typing import Any

from dpml.errors import ConfigError
from dpml.pipes import reader_may_leave

FLAGS = ("-h", "--help", "-help")


def show_help(arguments: Sequence[str]) -> None:
    """Print the help and leave, with status 1 if the other words compose to nothing; return where none is asked for.

    ``python -m dpml.train +experiment=logreg --help`` shows the values of that experiment.  Other flags of Hydra's
    beside ``--help`` are left to Hydra.
    """
    if not any(flag in arguments for flag in FLAGS):
        return
    words = [word for word in arguments if word not in FLAGS]
    if any(word.startswith("-") for word in words):
        return
    import hydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from dpml import config as configuration

    configuration.register()
    try:
        with hydra.initialize_config_dir(str(configuration.config_folder()), version_base="1.3"):
            composed = hydra.compose("config", overrides=words, return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    template = str(composed.hydra.help.template)
    job = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
    with reader_may_leave():
        print(Template(template).safe_substitute(CONFIG=OmegaConf.to_yaml(job)))
    sys.exit(0)


def check_words(arguments: Sequence[str]) -> None:
    """Refuse ``KEY=VALUE`` of a key that no configuration has, and ``--KEY VALUE``, with the key that was meant.

    Hydra's own message proposes to append the misspelt key.

    Raises:
        ConfigError: the key, and the nearest one that exists.
    """
    known = known_keys()
    for word in arguments:
        flag = word.lstrip("-").partition("=")[0].replace("-", "_") if word.startswith("--") else ""
        meant = [key for key in known if flag and flag in (key, key.rpartition(".")[2])]
        if meant:
            raise ConfigError(f"{word}: values are given as KEY=VALUE, here {meant[0]}=VALUE.")
        found = re.match(r"([A-Za-z_][\w.]*)=", word)
        key = found.group(1) if found else "hydra"
        parents = [key[: place.start()] for place in re.finditer(r"\.", key)]
        if key.partition(".")[0] == "hydra" or key in known or any(known.get(parent) for parent in parents):
            continue
        near = [k for k in known if k.rpartition(".")[2] == key.rpartition(".")[2]]
        near += difflib.get_close_matches(key, known, 1, 0.75)
        near += [k for k in known if difflib.get_close_matches(key, [k.rpartition(".")[2]], 1, 0.8)]
        hint = f" Did you mean {near[0]}=…?" if near else ""
        raise ConfigError(f"{key} is unknown.{hint} (python -m dpml.train --help shows all; {word} was given)")


def known_keys() -> dict[str, bool]:
    """Every key of every configuration, ``privacy.epsilon`` say; true for a mapping that takes keys of the user's."""
    from dataclasses import fields

    from omegaconf import OmegaConf

    from dpml import config as configuration

    known = {item.name: False for item in fields(configuration.Config)}
    known |= {"experiment": False, "sweep": False, "resume": False, "resume_sweep": False}
    for group, members in configuration.GROUPS.items():
        for node in members.values():
            known |= dict(_keys(f"{group}.", OmegaConf.structured(node)))
    return known


def _keys(prefix: str, node: Any) -> Iterator[tuple[str, bool]]:
    from omegaconf import DictConfig

    for key in node:
        child = node._get_node(key)
        inner = isinstance(child, DictConfig) and not child._is_none() and not child._is_missing()
        yield f"{prefix}{key}", inner and not len(child)
        if inner:
            yield from _keys(f"{prefix}{key}.", child)
