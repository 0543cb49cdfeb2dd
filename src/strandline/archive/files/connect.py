"""Opens the file system that a URL names."""

from __future__ import annotations

import logging

from strandline.archive.files.arrow import ArrowFiles
from strandline.archive.files.local import LocalFiles
from strandline.archive.files.port import Files

log = logging.getLogger(__name__)


def connect(url: str) -> Files:
    """A path or `file://…`, `hdfs://host:port/path`, `s3://bucket/prefix`, or any URL that pyarrow opens."""
    scheme = url.partition("://")[0] if "://" in url else ""
    if scheme in {"", "file"}:
        return LocalFiles(url)
    if scheme == "hdfs":
        from strandline.archive.files.hdfs import HdfsFiles  # noqa: PLC0415 - its driver is an extra

        return HdfsFiles(url)
    if scheme == "s3":
        from strandline.archive.files.s3 import S3Files  # noqa: PLC0415 - its driver is an extra

        return S3Files(url)
    log.warning("files on %s have no conditional writes: run one archive process at a time", scheme)
    return ArrowFiles(url)
