"""SQL lives in `.sql` files, in blocks that start with `-- name: <identifier>`."""

from __future__ import annotations

import re
from importlib import resources

_BLOCK = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


def load(package: str, file: str) -> dict[str, str]:
    """The named blocks of a `.sql` file that lies beside the modules of `package`."""
    text = resources.files(package).joinpath(file).read_text(encoding="utf-8")
    blocks: dict[str, str] = {}
    parts = _BLOCK.split(text)
    for name, block in zip(parts[1::2], parts[2::2], strict=True):
        if name in blocks:
            raise ValueError(f"{file} of {package} has two blocks named {name}")
        blocks[name] = block.strip()
    return blocks
