"""What Hydra and OmegaConf refuse while they compose, as our :class:`~dpml.errors.ConfigError` that names the key.

Left alone, Hydra prints such a fault with the names of its own types and a hint for its developers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from dpml.config import GROUPS
from dpml.config_keys import foreign_key, refuse_foreign
from dpml.errors import ConfigError, DpmlError

FULL = "HYDRA_FULL_ERROR"
"""With it Hydra raises what it else prints; a user who sets it wants Hydra's own traceback."""
INTERNAL = ("full_key:", "reference_type=", "object_type=", "Set the environment variable")
MERGING = "Error merging override "
NO_LIST = "is not a ListConfig, list or tuple"


def fault_text(error: BaseException) -> str:
    """One line: the override that was refused, or the key, and why."""
    lines = [line.strip() for line in str(error).splitlines()]
    cause = error.__cause__
    if cause is not None:
        lines += [line.strip() for line in str(cause).splitlines()]
    kept = list(dict.fromkeys(line for line in lines if line and not line.startswith(INTERNAL)))
    if not kept:
        return type(error).__name__
    foreign = foreign_key(" ".join(kept), GROUPS)
    if foreign is not None:
        group, member, name = foreign
        try:
            refuse_foreign(group, member, [name], GROUPS[group])
        except ConfigError as clearer:
            return str(clearer)
    key = getattr(error, "full_key", None) or getattr(cause, "full_key", None)
    if kept[0].startswith(MERGING) and NO_LIST in kept[-1]:
        name, _, value = kept[0].removeprefix(MERGING).strip("'\"").partition("=")
        return f"{name} = {value} is not allowed: it must be a list. Write it in brackets: '{name}=[{value}]'."
    if kept[0].startswith(MERGING):
        return f"{kept[0].removeprefix(MERGING)} is not allowed: {' '.join(kept[1:])}."
    text = " ".join(kept)
    return f"{key}: {text}" if key and key not in text else text


@contextmanager
def as_config_errors() -> Iterator[None]:
    """Faults of composition inside leave as ConfigError.

    Raises:
        ConfigError: instead of what Hydra or OmegaConf raised.
        SystemExit: 1 for any other error but ours, as Hydra ends then; one line says what it was.
    """
    before = os.environ.get(FULL)
    os.environ[FULL] = "1"
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        if before == "1":
            raise
        raise ConfigError(fault_text(error)) from error
    except DpmlError:
        raise
    except Exception as error:  # a launcher's, say
        if before == "1":
            raise
        print(f"error: {type(error).__name__}: {error}", file=sys.stderr)
        raise SystemExit(1) from error
    finally:
        if before is None:
            os.environ.pop(FULL, None)
        else:
            os.environ[FULL] = before
