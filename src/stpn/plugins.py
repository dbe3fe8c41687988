"""Cores, tasks and algorithms of other packages and of one's own modules.

A package names them in its entry points, groups "stpn.cores" (a class, under the core's name),
"stpn.tasks" (a `stpn.tasks.registry.Task`) and "stpn.algorithms" (settings, under the algorithm's
name). The environment variable STPN_PLUGINS=my_module,other names modules, also in the current
directory, that register theirs when they are imported.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import traceback
from collections.abc import Callable
from importlib import metadata
from typing import Any

from stpn.errors import ConfigError

CORES, TASKS, ALGORITHMS = "stpn.cores", "stpn.tasks", "stpn.algorithms"
VARIABLE = "STPN_PLUGINS"

_loaded = False


def load() -> None:
    """Once in a process, and when something is first looked up by name."""
    global _loaded
    if _loaded:
        return
    _loaded = True
    from stpn.cores import register_core
    from stpn.tasks.registry import register_task
    from stpn.training.algorithms import register_algorithm

    join: dict[str, Callable[[str, Any], object]] = {
        CORES: register_core,
        TASKS: lambda _, task: register_task(task),
        ALGORITHMS: register_algorithm,
    }
    for group, register in join.items():
        for point in metadata.entry_points(group=group):
            try:
                register(point.name, point.load())
            except Exception as error:  # somebody else's package must not take ours down
                logging.getLogger("stpn").warning("%s of %s: %s", point.name, point.value, error)
    for module in filter(None, os.environ.get(VARIABLE, "").split(",")):
        if (here := os.getcwd()) not in sys.path:
            sys.path.append(here)  # at the end: it hides nothing that is installed
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ConfigError(f"{VARIABLE} names {module!r}: {error}") from error
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            raise ConfigError(
                f"{VARIABLE} names {module!r}, which raised {error!r} ({place.filename}, line "
                f"{place.lineno})"
            ) from error
