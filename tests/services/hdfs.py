"""HDFS: a NameNode and a DataNode in one process. Its data are stored in its folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hdfs_native import Client, WriteOptions

from services.java import JavaService


class HdfsCluster(JavaService):
    name = "hdfs"
    product = "hadoop"
    main = "org.apache.hadoop.mapreduce.MiniHadoopClusterManager"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.url = f"hdfs://127.0.0.1:{self.port}"

    def arguments(self) -> Sequence[str]:
        return ["-nomr", "-format", "-datanodes", "1", "-nnport", str(self.port)]

    def answers(self) -> bool:
        """Whether a file can be written: the NameNode answers before it has a DataNode."""
        try:
            with Client(self.url).create("/up", WriteOptions(overwrite=True)) as file:
                file.write(b"yes")
        except (OSError, RuntimeError):
            return False
        return True
