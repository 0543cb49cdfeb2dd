"""Rules of the house style that can be checked by a program."""

from __future__ import annotations

import ast
import itertools
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "strandline"
MODULES = sorted(SOURCE.rglob("*.py"))
PORTS = [module for module in MODULES if module.name == "port.py"]
# Which engine module may import which driver.
DRIVERS = {
    "apsw": "sqlite",
    "sqlite3": None,
    "confluent_kafka": "kafka",
    "psycopg": "postgres",
    "psycopg_pool": "postgres",
    "redis": "redis",
    "kazoo": "zookeeper",
    "cassandra": "cassandra",
    "hdfs_native": "hdfs",
    "boto3": "s3",
    "botocore": "s3",
}


def tree(module: Path) -> ast.Module:
    return ast.parse(module.read_text(encoding="utf-8"))


def functions(module: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree(module)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of the body without the docstring."""
    body = function.body
    if ast.get_docstring(function, clean=False) is not None:
        body = body[1:]
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def imported(module: Path) -> set[str]:
    """All top-level packages that a module imports, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=False, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def test_no_module_is_too_long():
    """A module has at most 500 lines."""
    lengths = {str(module.relative_to(ROOT)): len(module.read_text().splitlines()) for module in MODULES}
    assert {name: length for name, length in lengths.items() if length > 500} == {}


def test_functions_read_in_one_breath():
    """The median length of functions is at most ten lines."""
    lengths = [body_lines(function) for module in MODULES for function in functions(module)]
    assert len(lengths) > 100
    assert statistics.median(lengths) <= 10


def test_no_constructor_takes_too_much():
    """A constructor has at most eight arguments; use a settings value for more."""
    found = {
        f"{module.relative_to(ROOT)}:{function.lineno}"
        for module in MODULES
        for function in functions(module)
        if function.name == "__init__"
        and len(function.args.posonlyargs + function.args.args + function.args.kwonlyargs) - 1 > 8
    }
    assert found == set()


def is_abstract(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and any(
        isinstance(mark, ast.Name) and mark.id == "abstractmethod" for mark in node.decorator_list
    )


@pytest.mark.parametrize("module", PORTS, ids=lambda module: module.parent.name)
def test_ports_are_small_and_say_what_they_promise(module):
    """A port has at most twelve abstract methods, each with a docstring, and none is async."""
    classes = [node for node in tree(module).body if isinstance(node, ast.ClassDef)]
    ports = {node.name: [part for part in node.body if is_abstract(part)] for node in classes}
    assert any(ports.values())
    for name, methods in ports.items():
        assert len(methods) <= 12, name
        assert [method.name for method in methods if not ast.get_docstring(method)] == []
    assert not any(isinstance(node, ast.AsyncFunctionDef) for node in ast.walk(tree(module)))


@pytest.mark.parametrize("driver", DRIVERS)
def test_only_its_engine_module_imports_a_driver(driver):
    """Only `engine/<product>.py` imports the driver of a product."""
    importers = {str(m.relative_to(SOURCE)) for m in MODULES if driver in imported(m)}
    allowed = {f"engine/{DRIVERS[driver]}.py"} if DRIVERS[driver] else set()
    assert importers <= allowed


def test_only_the_pipeline_imports_spark():
    """All other packages work without Java."""
    importers = [str(m.relative_to(SOURCE)) for m in MODULES if "pyspark" in imported(m)]
    assert [name for name in importers if not name.startswith("pipeline/")] == []


def test_the_kernel_needs_the_standard_library_only():
    """errors, clock, config and room import no third-party packages and nothing above them."""
    allowed = {"errors": set(), "clock": {"strandline"}, "config": {"strandline"}, "room": set()}
    for name, own in allowed.items():
        foreign = {n for n in imported(SOURCE / f"{name}.py") if n not in sys.stdlib_module_names}
        assert foreign <= own, name


# The one-letter classes keep this file from matching its own patterns.
FORBIDDEN = {
    "a path of one machine": re.compile(r"(?<![\w.])/[w]ork/|(?<![\w.])/[r]oot/|(?<![\w.])/[h]ome/\w"),
    "a download address of a package": re.compile(
        r"https?://[\w.-]*(?:[p]ypi\.org|[p]ythonhosted\.org|[n]pmjs\.org|repo\d*\.[m]aven)|https?://\S+/[s]imple/"
    ),
    "a marker of work left over": re.compile(r"\b(?:[T]ODO|[F]IXME|[X]XX)\b"),
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_tracked_files_name_no_machine_no_registry_and_no_leftovers(what):
    """Tracked files must work on any machine and with any package mirror."""
    found = []
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in FORBIDDEN[what].finditer(text)]
    assert found == []


def test_no_test_takes_sleep_away_from_everybody():
    """A patched `time.sleep` affects all threads, some of which then spin until the test ends."""
    patched = re.compile(r'setattr\(\s*(?:[\w.]*\btime, "sleep"|"[\w.]*\btime\.sleep")')
    tests = sorted((ROOT / "tests").rglob("*.py"))
    assert patched.search('monkeypatch.setattr(files.time, "sleep", none)')
    assert patched.search('patch.setattr("strandline.files.time.sleep", none)')
    found = [
        path.name for path in tests if path.name != Path(__file__).name and patched.search(path.read_text("utf-8"))
    ]
    assert found == []


# Endings that make another form of the same word.
ENDINGS = {"", "s", "e", "es", "ed", "er", "ers", "or", "ors", "ing", "ings", "ion", "ions", "ation", "ations"}
_SHORTEST_STEM = 3


def differ_by_an_ending(one: str, other: str) -> bool:
    return any(
        one[:length] == other[:length] and one[length:] in ENDINGS and other[length:] in ENDINGS
        for length in range(_SHORTEST_STEM, min(len(one), len(other)) + 1)
    )


def test_one_meaning_per_class_name():
    """No two public classes have the same name."""
    homes: dict[str, list[str]] = {}
    for module in MODULES:
        for node in tree(module).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(str(module.relative_to(SOURCE)))
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


def test_no_two_modules_differ_by_an_ending():
    """`publisher` beside `publishing` explains neither. Packages count as modules."""
    assert differ_by_an_ending("publisher", "publishing")
    assert differ_by_an_ending("log", "logs")
    assert not differ_by_an_ending("stream_routes", "stream_encoders")
    packages = {module.parent for module in MODULES}
    found = []
    for package in sorted(packages):
        names = {path.stem for path in package.iterdir() if path.suffix == ".py" or path in packages}
        pairs = itertools.combinations(sorted(names), 2)
        alike = [pair for pair in pairs if differ_by_an_ending(*pair)]
        found += [f"{package.relative_to(ROOT)}: {one}, {other}" for one, other in alike]
    assert found == []
