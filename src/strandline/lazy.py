"""Imports the names of a package when they are first used."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

# Without the lock, two threads that load packages which import each other could see one of them half loaded.
_loading = threading.RLock()


def lazy(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package; `homes` maps each name to the module that defines it."""

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with _loading:
            return getattr(import_module(homes[name]), name)

    return load
