"""Java services for tests and benchmarks, as jars: `python tests/jars.py kafka` fetches what is missing.

Nothing but Java is needed: PySpark ships Ivy, which resolves Maven coordinates with all their dependencies.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

CACHE = Path(__file__).parents[1] / ".cache" / "services"


@dataclass(frozen=True)
class Product:
    organisation: str
    artifact: str
    version: str
    options: tuple[str, ...] = ()


_ALONE = ("-notransitive",)

PRODUCTS = {
    "kafka": Product("org.apache.kafka", "kafka_2.13", "4.3.1"),
    # Without the one configuration Ivy asks for what its relocated jars bring along.
    "hadoop": Product("org.apache.hadoop", "hadoop-client-minicluster", "3.4.2", ("-confs", "default")),
    # Spark's own Kafka connector, a peer of benchmarks: no release is for our Spark, so each part is named.
    "spark-sql-kafka": Product("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0", _ALONE),
    "spark-token-provider": Product("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0", _ALONE),
    "kafka-clients": Product("org.apache.kafka", "kafka-clients", "3.9.1", _ALONE),
    # A Nakadi client that is to be served unchanged, with the HTTP module it brings along.
    "fahrschein": Product("org.zalando", "fahrschein", "0.24.0"),
    "commons-pool2": Product("org.apache.commons", "commons-pool2", "2.12.0", _ALONE),
}


def classpath(name: str) -> str:
    """What `java -cp` needs to run the product; fetched first if it is missing."""
    return f"{fetched(name)}/*"


def fetched(name: str) -> Path:
    """The folder with the product's jars. It is there as a whole or not at all."""
    product = PRODUCTS[name]
    folder = CACHE / f"{name}-{product.version}"
    if folder.is_dir():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=CACHE) as temporary:
        jars = _download(product, Path(temporary), f"fetching {name} {product.version}")
        try:
            jars.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster
                raise
    return folder


def _download(product: Product, temporary: Path, label: str) -> Path:
    jars = temporary / "jars"
    jars.mkdir()
    command = [
        *(_java(), "-cp", str(_ivy()), "org.apache.ivy.Main", "-cache", str(temporary / "cache"), "-m2compatible"),
        *("-types", "jar", "bundle"),  # without bundle scala-logging is missing
        *product.options,
        *("-dependency", product.organisation, product.artifact, product.version),
        *("-retrieve", f"{jars}/[artifact]-[revision](-[classifier]).[ext]"),
    ]
    log = temporary / "ivy.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=temporary, stdout=output, stderr=subprocess.STDOUT)
        try:
            while _still_running(process):
                _say(f"{label} … {len(list(temporary.glob('cache/**/*.jar')))} jars")
        finally:
            process.kill()
    _say(f"{label} … {len(list(jars.iterdir()))} jars\n")
    if process.returncode or not any(jars.iterdir()):
        raise SystemExit(f"{label} failed:\n{log.read_text(errors='replace')[-3000:]}")
    return jars


def _still_running(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(1)
    except subprocess.TimeoutExpired:
        return True
    return False


def _say(text: str) -> None:
    # One line that is written over on a terminal, the last state elsewhere.
    if sys.stderr.isatty() or text.endswith("\n"):
        sys.stderr.write(f"\r{text}")
        sys.stderr.flush()


def _java() -> str:
    java = shutil.which("java")
    if java is None:
        raise SystemExit("Java 17 or newer is needed for the real services of the tests; there is no `java` here")
    return java


def _ivy() -> Path:
    spec = find_spec("pyspark")
    found = [] if spec is None or spec.origin is None else [*Path(spec.origin).parent.glob("jars/ivy-*.jar")]
    if not found:
        raise SystemExit("PySpark, which brings Ivy, is not installed: pip install 'strandline[spark]'")
    return found[0]


if __name__ == "__main__":
    for product_name in sys.argv[1:] or PRODUCTS:
        fetched(product_name)
