"""The documentation: its examples run, its reference matches the code, its links are valid."""

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from services import CLIENT, DEADLINE_S, Server, Up

ROOT = Path(__file__).parents[2]
PAGES = sorted(path.relative_to(ROOT) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```\n(?:\s*^```output\n(.*?)^```)?", re.MULTILINE | re.DOTALL)
README, TUTORIAL, FANOUT = Path("README.md"), Path("docs/tutorial.md"), Path("docs/how-to/fanout.md")
# In the order in which they are read. `run-a-node.md` starts servers, which do not end by themselves.
EXAMPLES = [page for page in PAGES if BLOCK.search((ROOT / page).read_text()) and page.name != "run-a-node.md"]
READ = [TUTORIAL, *(page for page in EXAMPLES if page not in {README, TUTORIAL, FANOUT})]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The directory in which all pages are tried, one after the other."""
    return tmp_path_factory.mktemp("reader")


@pytest.fixture(scope="module")
def url(folder):
    """One server for all pages after the README, whose jobs would do what the pages do by hand."""
    with Server(folder / "data") as server:
        yield server.url


def run(command: list[str], text: str, folder: Path) -> str:
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, cwd=folder, env=env, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def shell(block: str) -> str:
    lines = [line.removeprefix("$ ") for line in block.splitlines()]
    return "set -euo pipefail\n" + "\n".join(lines).replace("curl ", "curl --fail --silent --show-error ")


def matches(expected: str, printed: str) -> bool:
    """Whether this was printed. In a line, … stands for any text; a line of its own stands for any lines."""
    lines = [
        r"(?:.*\n)*" if line.strip() == "…" else re.escape(line).replace("…", ".*") + r" *\n"
        for line in expected.splitlines()
    ]
    return (
        re.fullmatch("".join(lines), printed if printed.endswith("\n") or not printed else f"{printed}\n")
        is not None
    )


def follow(page: Path, url: str, folder: Path) -> None:
    """Run the Python and console blocks of a page in order, and compare what they print with its output blocks."""
    for language, block, expected in BLOCK.findall((ROOT / page).read_text()):
        text = block.replace("http://127.0.0.1:8080", url)
        if language == "python":
            printed = run([sys.executable, "-W", "error", "-"], text, folder)
        else:
            printed = run(["bash"], shell(text), folder)
        assert not expected or matches(expected, printed), f"{block}\nprinted\n{printed}\nnot\n{expected}"


def test_the_readme_runs(folder):
    """The README is read first, with all jobs, as `make up SHIFT=10s` starts them; then the start page."""
    with Up(folder / "data", shift="10s") as node:
        follow(README, node.url, folder)
        commands, with_curl, program = (html.unescape(block) for block in start_page(node.url))
        assert run(["bash"], shell(commands), folder).endswith('{"id": 1, "part": "bolt"}\n')
        run(["bash"], shell(with_curl), folder)
        assert "bolt" in run([sys.executable, "-W", "error", "-"], program, folder)


def start_page(url: str) -> list[str]:
    """The blocks of commands of the start page."""
    page = CLIENT.get(url).text
    return re.findall(r"<pre><code>(.*?)</code></pre>", page, re.DOTALL)


def test_the_fan_out_runs(tmp_path):
    """This page has the same users as the page of the feeds, so it has a directory of its own."""
    with Server(tmp_path / "data") as server:
        follow(FANOUT, server.url, tmp_path)


@pytest.mark.parametrize("page", READ, ids=str)
def test_examples_run(page, folder, url):
    """The tutorial and the how-tos run one after the other in the directory of the README, with one server."""
    follow(page, url, folder)


def test_an_output_block_is_compared():
    """The comparison fails on another line, on a missing one and on one too many."""
    printed = "created orders\nfield  value\nname   orders\n"
    assert matches(printed, printed)
    assert matches("created …\n…\n", printed)
    assert not matches("created visits\n…\n", printed)
    assert not matches("created orders\n", printed)
    assert not matches("created orders\n…\nmore\n", printed)


def test_every_output_block_follows_an_example():
    """An output block that is not compared would only look checked."""
    for page in PAGES:
        text = (ROOT / page).read_text()
        compared = [expected for *_, expected in BLOCK.findall(text) if expected]
        assert len(compared) == len(re.findall(r"^```output$", text, re.MULTILINE)), page


def test_reference_pages_are_up_to_date():
    """`make docs` would not change the reference pages."""
    done = subprocess.run(
        [sys.executable, "-m", "docs.build", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_somewhere(page):
    """Every relative link points to an existing file."""
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", (ROOT / page).read_text()):
        if "://" not in target:
            assert (ROOT / page).parent.joinpath(target).exists(), target


def test_every_named_test_exists():
    """The pages name tests by their path, or by the name of the file after another one of the same folder."""
    named = 0
    for page in PAGES:
        for folder, file in re.findall(r"`(tests/[\w/]*?)?(\w+\.py)?`", (ROOT / page).read_text()):
            if folder:
                assert (ROOT / folder / file).exists(), (page, folder, file)
            elif file.startswith("test_"):
                assert [*ROOT.glob(f"tests/**/{file}")], (page, file)
            named += bool(folder)
    assert named > 50


def test_the_readme_is_short():
    """The README has at most 150 lines."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
