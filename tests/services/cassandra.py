"""Cassandra: a cluster of one node."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable
from cassandra.connection import ConnectionException
from cassandra.policies import RoundRobinPolicy

from services.java import JavaService
from services.process import free_port

# The commit log is synced as in production. Small caches and memtables, because several servers share one machine.
# Memtables, sstables and compaction are those of Cassandra's `cassandra_latest.yaml`: they take less CPU time.
# A batch is refused above 50 KiB, as in production. Longer timeouts, because the machine may be busy.
_CONFIGURATION = """
cluster_name: strandline
num_tokens: 1
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
endpoint_snitch: SimpleSnitch
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters: [{{seeds: "127.0.0.1:{storage_port}"}}]
listen_address: 127.0.0.1
rpc_address: 127.0.0.1
storage_port: {storage_port}
native_transport_port: {port}
start_native_transport: true
commitlog_sync: periodic
commitlog_sync_period: 10s
commitlog_segment_size: 16MiB
commitlog_total_space: 256MiB
storage_compatibility_mode: NONE
memtable: {{configurations: {{trie: {{class_name: TrieMemtable}}, default: {{inherits: trie}}}}}}
memtable_allocation_type: offheap_objects
memtable_heap_space: 128MiB
memtable_offheap_space: 256MiB
sstable: {{selected_format: bti}}
default_compaction: {{class_name: UnifiedCompactionStrategy, parameters: {{scaling_parameters: T4}}}}
batch_size_warn_threshold: 40KiB
key_cache_size: 8MiB
file_cache_size: 64MiB
networking_cache_size: 32MiB
read_request_timeout: 30s
write_request_timeout: 30s
concurrent_reads: 16
concurrent_writes: 16
auto_snapshot: false
data_file_directories: [{folder}/data]
commitlog_directory: {folder}/commitlog
saved_caches_directory: {folder}/saved_caches
hints_directory: {folder}/hints
cdc_raw_directory: {folder}/cdc_raw
"""

# Without this file every detail is logged, which takes most of the time of a start.
_LOGGING = """
<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%date %level %logger %msg%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="out"/></root>
</configuration>
"""

# What Cassandra's own `jvm17-server.options` opens.
_EXPORTS = (
    *("java.base/jdk.internal.misc", "java.base/java.lang.ref", "java.sql/java.sql", "jdk.unsupported/sun.misc"),
    *(
        "java.management.rmi/com.sun.jmx.remote.internal.rmi",
        "java.rmi/sun.rmi.registry",
        "java.rmi/sun.rmi.server",
    ),
    *("jdk.compiler/com.sun.tools.javac.file", "jdk.attach/sun.tools.attach"),
)
_OPENS = (
    *("java.base/java.lang.module", "java.base/jdk.internal.loader", "java.base/jdk.internal.ref"),
    *("java.base/jdk.internal.reflect", "java.base/jdk.internal.math", "java.base/jdk.internal.module"),
    *("java.base/jdk.internal.util.jar", "java.base/sun.nio.ch", "java.base/java.io", "java.base/java.util"),
    *("java.base/java.lang.reflect", "java.base/java.lang", "jdk.management/com.sun.management.internal"),
    "jdk.compiler/com.sun.tools.javac",
)


class CassandraServer(JavaService):
    """Tests have topics of their own in a shared keyspace: to create tables takes seconds."""

    name = "cassandra"
    product = "cassandra"
    main = "org.apache.cassandra.service.CassandraDaemon"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        settings = self.folder / "cassandra.yaml"
        values = {"port": self.port, "storage_port": free_port(), "folder": self.folder}
        settings.write_text(_CONFIGURATION.format(**values))
        (self.folder / "logback.xml").write_text(_LOGGING)
        self.jvm_options = (
            *("-Xms128m", "-XX:MaxDirectMemorySize=512m"),
            *(option for name in _EXPORTS for option in ("--add-exports", f"{name}=ALL-UNNAMED")),
            *(option for name in _OPENS for option in ("--add-opens", f"{name}=ALL-UNNAMED")),
            *("-Djdk.attach.allowAttachSelf=true", "-Dio.netty.tryReflectionSetAccessible=true"),
            *(f"-Dcassandra.config=file://{settings}", "-Dcassandra-foreground=yes"),
            *(f"-Dcassandra.storagedir={self.folder}", f"-Dcassandra.logdir={self.folder}"),
            *("-Dcassandra.ring_delay_ms=0", "-Dcassandra.skip_wait_for_gossip_to_settle=0"),
        )

    def classpath(self) -> str:
        return f"{self.folder}:{super().classpath()}"

    def arguments(self) -> Sequence[str]:
        return []

    def answers(self) -> bool:
        try:
            self.execute("SELECT release_version FROM system.local")
        except (NoHostAvailable, ConnectionException, OSError):
            return False
        return True

    def execute(self, statement: str) -> list[tuple]:
        """Run a statement on a new connection; returns its rows."""
        with self.cluster() as cluster, cluster.connect() as session:
            return [tuple(row) for row in session.execute(statement, timeout=60)]

    def cluster(self) -> Cluster:
        profile = ExecutionProfile(load_balancing_policy=RoundRobinPolicy())
        profiles = {EXEC_PROFILE_DEFAULT: profile}
        return Cluster(
            ["127.0.0.1"], port=self.port, protocol_version=5, connect_timeout=5, execution_profiles=profiles
        )

    def url(self, keyspace: str) -> str:
        return f"cassandra://127.0.0.1:{self.port}/{keyspace}"

    def new_keyspace(self, replicas: int = 1) -> str:
        """Create an empty keyspace with a unique name; returns the name."""
        name = f"test_{uuid.uuid4().hex}"
        replication = f"{{'class': 'SimpleStrategy', 'replication_factor': {replicas}}}"
        self.execute(f"CREATE KEYSPACE {name} WITH replication = {replication}")
        return name
