"""Imports the names of a package when they are first used."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

# Without the lock, two threads that load packages which import each other could see one of them half loaded.
_loading = threading.RLock()


def lazy(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and the `__dir__` of a package; `homes` maps each name to the module that defines it."""

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with _loading:
            return getattr(import_module(homes[name]), name)

    def names() -> list[str]:
        return sorted({*vars(import_module(package)), *homes})

    return load, names
