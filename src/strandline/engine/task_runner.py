"""Tasks as values that can run in another process, and the stores that a process keeps open for them."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from strandline.engine.connect import Databases
from strandline.errors import StrandlineError

_Result = TypeVar("_Result")
_Result_co = TypeVar("_Result_co", covariant=True)


class RoomTask(Protocol[_Result_co]):
    def run(self) -> _Result_co: ...


class TaskRunner(ABC):
    """Runs tasks, at most `parallel` at the same time. A task may run twice."""

    parallel = 1

    @abstractmethod
    def run(self, tasks: Sequence[RoomTask[_Result]]) -> list[_Result | StrandlineError]:
        """The result of every task, or its error."""


class InThisProcess(TaskRunner):
    """Runs tasks one after the other."""

    def run(self, tasks: Sequence[RoomTask[_Result]]) -> list[_Result | StrandlineError]:
        return [_attempt(task) for task in tasks]


def _attempt(task: RoomTask[_Result]) -> _Result | StrandlineError:
    try:
        return task.run()
    except StrandlineError as error:
        return error


class _Closable(Protocol):
    def close(self) -> None: ...


_Key = TypeVar("_Key", bound=Hashable)
_Stores = TypeVar("_Stores", bound=_Closable)


class TaskStores(Generic[_Key, _Stores]):
    """The stores of tasks, each opened once per process: a worker process runs many tasks. Thread-safe."""

    def __init__(self, connect: Callable[[_Key, Databases], _Stores]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._open: dict[tuple[_Key, str], tuple[_Stores, Databases]] = {}

    def get(self, key: _Key, data: str) -> _Stores:
        """The stores at an address, or with settings; files are in the data directory `data`."""
        with self._lock:
            if (key, data) not in self._open:
                databases = Databases(Path(data))
                self._open[key, data] = (self._connect(key, databases), databases)
            return self._open[key, data][0]

    def close(self) -> None:
        """Close all stores; they are opened again when a task needs them."""
        with self._lock:
            for stores, databases in self._open.values():
                stores.close()
                databases.close()
            self._open.clear()
