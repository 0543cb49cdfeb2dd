"""Watches the JVM of Spark's driver: without it no job can do anything."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from subprocess import Popen
from typing import TYPE_CHECKING

from strandline.errors import Unavailable
from strandline.pipeline.session import LOST_ERRORS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

# How long the jobs may take to end without Spark.
_END_SECONDS = 60.0
_EXIT_CODE = 1


class Jvm:
    """The JVM that `spark_session` has started; a JVM that was there before is not watched."""

    def __init__(self, spark: SparkSession) -> None:
        gateway = spark.sparkContext._gateway  # noqa: SLF001 - the only way to the process
        self._process: Popen[bytes] | None = getattr(gateway, "proc", None)
        self._spark = spark
        self._stopping = threading.Event()
        self.lost = False

    @contextmanager
    def watched(self, stop: threading.Event) -> Iterator[None]:
        """Set `stop` when the JVM ends within the block; the block then ends with Unavailable.

        If the block has not ended a minute later, the process ends at once, as in a crash.
        """
        if self._process is not None:
            threading.Thread(
                target=self._watch, args=(self._process, stop), name="strandline-jvm", daemon=True
            ).start()
        try:
            yield
        except Exception as error:
            if self.lost:
                raise self._error() from error
            raise
        finally:
            self._stopping.set()
        if self.lost:
            raise self._error()

    def _watch(self, process: Popen[bytes], stop: threading.Event) -> None:
        code = process.wait()
        if self._stopping.is_set():
            return
        self.lost = True
        log.error("the JVM of Spark ended with exit code %d; the jobs end", code)
        stop.set()
        if not self._stopping.wait(_END_SECONDS):
            os._exit(_EXIT_CODE)  # a job waits for the JVM

    def _error(self) -> Unavailable:
        return Unavailable(
            "the JVM of Spark ended while the jobs ran, so they were stopped; nothing that was written is lost. "
            "Start the command again; if the JVM was killed for its memory, raise spark.driver.memory"
        )

    def stop(self) -> None:
        """Stop Spark; a JVM that has ended needs no stop."""
        with suppress(*LOST_ERRORS) if self.lost else nullcontext():
            self._spark.stop()
