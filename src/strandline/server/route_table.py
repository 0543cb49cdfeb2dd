"""Finds the route of a path, with one dictionary lookup per part of the path."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

from starlette.types import Receive, Scope, Send

#: Serves one request; the mapping has the parameters of the path.
Serve = Callable[[Scope, Receive, Send, Mapping[str, str]], Awaitable[None]]


@dataclass(frozen=True)
class Route:
    """A path such as `/event-types/{name}`, and what serves each of its methods. HEAD is served as GET."""

    path: str
    serve: Mapping[str, Serve]

    @property
    def methods(self) -> set[str]:
        return {*self.serve, "HEAD"} if "GET" in self.serve else {*self.serve}


@dataclass
class _Node:
    """The routes that begin with the same parts; `parameter` is the branch of a part such as `{name}`."""

    route: Route | None = None
    literal: dict[str, _Node] = field(default_factory=dict)
    parameter: _Node | None = None


class RouteTable:
    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
        self._names: dict[str, list[str]] = {}
        for route in routes:
            self._add(route)

    def _add(self, route: Route) -> None:
        node = self._root
        names: list[str] = []
        for part in _parts(route.path):
            if part.startswith("{"):
                names.append(part[1:-1])
                node.parameter = node = node.parameter or _Node()
            else:
                node = node.literal.setdefault(part, _Node())
        node.route = route
        self._names[route.path] = names

    def find(self, path: str, raw_path: bytes = b"") -> tuple[Route, dict[str, str]] | None:
        """The route of a path and the parameters of the path. A parameter is one part that is not empty.

        `raw_path` is the path as it was sent: a slash that is encoded there does not end a part.
        """
        values: list[str] = []
        parts = _decoded_parts(raw_path) if b"%2f" in raw_path.lower() else _parts(path)
        route = _descend(self._root, parts, 0, values)
        return None if route is None else (route, dict(zip(self._names[route.path], values, strict=True)))


def _parts(path: str) -> list[str]:
    return path.split("/")[1:]


def _decoded_parts(raw_path: bytes) -> list[str]:
    return [unquote(part) for part in _parts(raw_path.decode("latin-1").rstrip("/"))]


def _descend(node: _Node, parts: Sequence[str], depth: int, values: list[str]) -> Route | None:
    """The route below a node for the remaining parts; `values` gets the values of the parameters on the way."""
    if depth == len(parts):
        return node.route
    part = parts[depth]
    if (below := node.literal.get(part)) is not None and (found := _descend(below, parts, depth + 1, values)):
        return found
    # Not only if there is no such literal: in `/archive/{name}/hours` the name can be that of another route.
    if node.parameter is not None and part:
        values.append(part)
        if found := _descend(node.parameter, parts, depth + 1, values):
            return found
        values.pop()
    return None
