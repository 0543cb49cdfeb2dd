"""Java products as folders of jars. `python -m services.jars kafka` downloads what is missing.

Only Java is needed: PySpark ships Ivy, which resolves Maven coordinates with all their dependencies.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from services.cache import cached, say


@dataclass(frozen=True)
class Product:
    organisation: str
    artifact: str
    version: str
    options: tuple[str, ...] = ()


_ALONE = ("-notransitive",)

PRODUCTS = {
    "kafka": Product("org.apache.kafka", "kafka_2.13", "4.3.1"),
    # Without `default` Ivy asks for dependencies that the jars already contain under other names.
    "hadoop": Product("org.apache.hadoop", "hadoop-client-minicluster", "3.4.2", ("-confs", "default")),
    "cassandra": Product("org.apache.cassandra", "cassandra-all", "5.0.9", ("-confs", "default")),
    # A Nakadi client that must work unchanged, with the HTTP module it depends on.
    "fahrschein": Product("org.zalando", "fahrschein", "0.24.0"),
    # Spark's own Kafka connector, a peer of benchmarks. No release matches our Spark, so each part is listed.
    "spark-sql-kafka": Product("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0", _ALONE),
    "spark-token-provider": Product("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0", _ALONE),
    "kafka-clients": Product("org.apache.kafka", "kafka-clients", "3.9.1", _ALONE),
    "commons-pool2": Product("org.apache.commons", "commons-pool2", "2.12.0", _ALONE),
}


def classpath(name: str | None) -> str:
    """The value of `java -cp` for a product, downloaded first if it is missing; for None, PySpark's own jars."""
    return f"{fetched(name) if name else spark_home() / 'jars'}/*"


def fetched(name: str) -> Path:
    """The folder with the jars of a product."""
    product = PRODUCTS[name]
    return cached(f"{name}-{product.version}", partial(_download, product, f"fetching {name} {product.version}"))


def spark_home() -> Path:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SystemExit(
            "PySpark, which ships Ivy and ZooKeeper, is not installed: pip install 'strandline[spark]'"
        )
    return Path(spec.origin).parent


def _download(product: Product, label: str, temporary: Path) -> Path:
    jars = temporary / "jars"
    jars.mkdir()
    (ivy,) = spark_home().glob("jars/ivy-*.jar")
    command = [
        *(_java(), "-cp", str(ivy), "org.apache.ivy.Main", "-cache", str(temporary / "cache"), "-m2compatible"),
        *("-types", "jar", "bundle"),  # without `bundle`, scala-logging is missing
        *product.options,
        *("-dependency", product.organisation, product.artifact, product.version),
        *("-retrieve", f"{jars}/[artifact]-[revision](-[classifier]).[ext]"),
    ]
    log = temporary / "ivy.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=temporary, stdout=output, stderr=subprocess.STDOUT)
        try:
            while _still_running(process):
                say(f"{label} … {len(list(temporary.glob('cache/**/*.jar')))} jars")
        finally:
            process.kill()
    say(f"{label} … {len(list(jars.iterdir()))} jars\n")
    if process.returncode or not any(jars.iterdir()):
        raise SystemExit(f"{label} failed:\n{log.read_text(errors='replace')[-3000:]}")
    return jars


def _still_running(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(1)
    except subprocess.TimeoutExpired:
        return True
    return False


def _java() -> str:
    java = shutil.which("java")
    if java is None:
        raise SystemExit("The tests run services that need Java 17 or newer, but `java` was not found; install it")
    return java


if __name__ == "__main__":
    for product_name in sys.argv[1:] or PRODUCTS:
        fetched(product_name)
