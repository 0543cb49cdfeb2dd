"""The coordination that the settings open."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.zookeeper import ZookeeperServer
from strandline.coordination.connect import connect
from strandline.coordination.settings import CoordinationSettings
from strandline.coordination.sqlite import SqliteCoordination
from strandline.coordination.zookeeper import ZookeeperCoordination
from strandline.errors import Invalid


def test_without_a_url_it_is_a_file_in_the_data_directory(tmp_path: Path):
    """The file and its directory are created if they are missing."""
    coordination = connect(CoordinationSettings(), tmp_path / "data")
    assert isinstance(coordination, SqliteCoordination)
    assert (tmp_path / "data" / "coordination.db").exists()
    coordination.close()


@pytest.mark.parametrize(
    ("hosts", "root", "version"),
    [
        ("{0}", "", "/strandline/version"),
        ("{0},{0}", "/a/b/", "/a/b/version"),
        ("localhost:{1}", "/a", "/a/version"),
    ],
)
def test_a_url_names_servers_and_a_root(
    zookeeper: ZookeeperServer, tmp_path: Path, hosts: str, root: str, version: str
):
    """A URL may name several servers; the root defaults to `/strandline`."""
    url = f"zookeeper://{hosts.format(zookeeper.hosts, zookeeper.port)}{root}"
    coordination = connect(CoordinationSettings(url), tmp_path)
    assert isinstance(coordination, ZookeeperCoordination)
    coordination.bump()
    node = coordination._zk.get(version)
    assert node is not None
    assert node.value == str(coordination.version())
    coordination.close()


@pytest.mark.parametrize(
    "url",
    ["zookeeper://", "zookeeper:///root", "zookeeper://host:port", "zookeeper://a,,b", "zookeeper://a//b",
     "etcd://host:2379", "host:2181", "zookeeper://host/root?x=1"],
)  # fmt: skip
def test_other_urls_are_refused(tmp_path: Path, url: str):
    """Other URLs are refused with an example, before any connection."""
    with pytest.raises(Invalid, match="zookeeper://host:2181/strandline"):
        connect(CoordinationSettings(url), tmp_path)
