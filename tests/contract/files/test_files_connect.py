"""The adapter of each URL, and the error if its driver is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from strandline.archive.files import connect
from strandline.archive.files.arrow import ArrowFiles
from strandline.errors import Invalid


@pytest.mark.parametrize(
    ("url", "driver", "extra"),
    [("hdfs://host:8020/x", "hdfs_native", "hdfs"), ("s3://bucket/x", "boto3", "s3")],
)
def test_a_missing_driver_is_named_with_its_install_line(url, driver, extra):
    """The error has the install command of the driver."""
    code = (
        f"import sys; sys.modules[{driver!r}] = None; sys.modules[{driver + '.session'!r}] = None\n"
        "from strandline.archive.files import connect\n"
        "from strandline.errors import Unavailable\n"
        f"try: connect({url!r})\n"
        "except Unavailable as error: print(error.detail)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert f"pip install 'strandline[{extra}]'" in done.stdout


def test_anything_else_is_for_pyarrow(caplog):
    """Other URLs use pyarrow, with a warning about its weaker guarantees."""
    assert isinstance(connect("gs://anonymous@bucket/prefix"), ArrowFiles)
    assert "one archive process at a time" in caplog.text


@pytest.mark.parametrize(
    "url", ["nonsense://x/y", "abfs://account:secret@container/x", "gs://bucket/?secret_key=secret"]
)
def test_addresses_that_lead_nowhere_are_invalid(url):
    """An unusable URL is Invalid, and the error shows no secret."""
    with pytest.raises(Invalid) as caught:
        connect(url)
    assert "secret" not in str(caught.value).replace("no secret", "")
