"""The documentation: its examples run, its reference matches the code, its links are valid."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from services import DEADLINE_S, Server, Up

ROOT = Path(__file__).parents[2]
PAGES = sorted(path.relative_to(ROOT) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXAMPLES = [page for page in PAGES if BLOCK.search((ROOT / page).read_text())]


def run(command: list[str], text: str, folder: Path) -> None:
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, cwd=folder, env=env, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"


def shell(block: str) -> str:
    lines = [line.removeprefix("$ ") for line in block.splitlines()]
    return "set -euo pipefail\n" + "\n".join(lines).replace("curl ", "curl --fail --silent --show-error ")


# `run-a-node.md` starts servers, which do not end by themselves.
@pytest.mark.parametrize("page", [page for page in EXAMPLES if page.name != "run-a-node.md"], ids=str)
def test_examples_run(page, tmp_path):
    """The Python and console blocks of a page run in order, in one directory, with a server.

    The README starts with all jobs, as `make up SHIFT=10s` does.
    """
    node = Up(tmp_path / "data", shift="10s") if page.name == "README.md" else Server(tmp_path / "data")
    with node as server:
        for language, block in BLOCK.findall((ROOT / page).read_text()):
            text = block.replace("http://127.0.0.1:8080", server.url)
            if language == "python":
                run([sys.executable, "-W", "error", "-"], text, tmp_path)
            else:
                run(["bash"], shell(text), tmp_path)


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


def test_the_readme_is_short():
    """The README has at most 150 lines."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
