"""The documentation tells the truth: its examples run, its reference is what the code says, its links lead."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from services import Server

ROOT = Path(__file__).parents[2]
PAGES = sorted(path.relative_to(ROOT) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXAMPLES = [page for page in PAGES if BLOCK.search((ROOT / page).read_text())]


def run(command: list[str], text: str, folder: Path) -> None:
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, cwd=folder, env=env, timeout=120, check=False
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"


def shell(block: str) -> str:
    lines = [line.removeprefix("$ ") for line in block.splitlines()]
    return "set -euo pipefail\n" + "\n".join(lines).replace("curl ", "curl --fail --silent --show-error ")


# Serving does not end by itself; the pages that show it are about operating a node.
@pytest.mark.parametrize("page", [page for page in EXAMPLES if page.name != "run-a-node.md"], ids=str)
def test_examples_run(page, tmp_path):
    """Every Python and console block of a page, one after the other in one folder, with a server running."""
    with Server(tmp_path / "data") as server:
        for language, block in BLOCK.findall((ROOT / page).read_text()):
            text = block.replace("http://127.0.0.1:8080", server.url)
            if language == "python":
                run([sys.executable, "-W", "error", "-"], text, tmp_path)
            else:
                run(["bash"], shell(text), tmp_path)


def test_reference_pages_are_up_to_date():
    """`make docs` would change nothing."""
    done = subprocess.run(
        [sys.executable, "-m", "docs.build", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_somewhere(page):
    """Every relative link names a file that is there."""
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", (ROOT / page).read_text()):
        if "://" not in target:
            assert (ROOT / page).parent.joinpath(target).exists(), target


def test_the_readme_is_short():
    """A newcomer reads it to the end."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
