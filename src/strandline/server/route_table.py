"""Finds the route of a path, with one dictionary lookup per part of the path."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from urllib.parse import unquote

from starlette.types import Receive, Scope, Send

#: Serves one request; the mapping has the parameters of the path.
Serve = Callable[[Scope, Receive, Send, Mapping[str, str]], Awaitable[None]]


@dataclass(frozen=True)
class Route:
    """A path such as `/event-types/{name}`, and what serves each of its methods. HEAD is served as GET."""

    path: str
    serve: Mapping[str, Serve]

    @cached_property
    def methods(self) -> set[str]:
        return {*self.serve, "HEAD"} if "GET" in self.serve else {*self.serve}


_ANY = re.compile("")

#: A route, and the parameters of the path.
Found = tuple[Route, dict[str, str]]


@dataclass
class _Node:
    """The routes that begin with the same parts; `parameter` is the branch of a part such as `{name}`.

    `pattern` is the form of the parameter that leads to this node.
    """

    route: Route | None = None
    literal: dict[str, _Node] = field(default_factory=dict)
    parameter: _Node | None = None
    pattern: re.Pattern[str] = _ANY


class RouteTable:
    """`patterns` are the forms of parameters by name. A part that is also a literal must match its pattern."""

    def __init__(self, routes: Iterable[Route], patterns: Mapping[str, str] | None = None) -> None:
        self._root = _Node()
        self._patterns = patterns or {}
        self._names: dict[str, list[str]] = {}
        for route in routes:
            self._add(route)

    def _add(self, route: Route) -> None:
        node = self._root
        names: list[str] = []
        for part in _parts(route.path):
            if part.startswith("{"):
                names.append(part[1:-1])
                pattern = re.compile(self._patterns.get(names[-1], ""))
                node.parameter = node = node.parameter or _Node(pattern=pattern)
            else:
                node = node.literal.setdefault(part, _Node())
        node.route = route
        self._names[route.path] = names

    def find(self, path: str, raw_path: bytes = b"", method: str | None = None) -> Found | None:
        """The route of a path and the parameters of the path. A parameter is one part that is not empty.

        `raw_path` is the path as it was sent: a slash that is encoded there does not end a part. If several routes
        match, one that serves the method is preferred: `/feeds/get` can also be the feed `get`.
        """
        parts = _decoded_parts(raw_path) if b"%2f" in raw_path.lower() else _parts(path)
        for wanted in (method, None):
            values: list[str] = []
            route = _descend(self._root, parts, wanted, values)
            if route is not None:
                return route, dict(zip(self._names[route.path], values, strict=True))
        return None


def _parts(path: str) -> list[str]:
    return path.split("/")[1:]


def _decoded_parts(raw_path: bytes) -> list[str]:
    return [unquote(part) for part in _parts(raw_path.decode("latin-1").rstrip("/"))]


def _descend(
    node: _Node, parts: Sequence[str], wanted: str | None, values: list[str], depth: int = 0
) -> Route | None:
    """The route below a node for the remaining parts that serves the wanted method, if one is given.

    `values` gets the values of the parameters on the way.
    """
    if depth == len(parts):
        return node.route if node.route is not None and (wanted is None or wanted in node.route.methods) else None
    part = parts[depth]
    below = node.literal.get(part)
    if below is not None and (found := _descend(below, parts, wanted, values, depth + 1)):
        return found
    # Not only if there is no such literal: in `/archive/{name}/hours` the name can be that of another route.
    if node.parameter is not None and part and (below is None or node.parameter.pattern.search(part)):
        values.append(part)
        if found := _descend(node.parameter, parts, wanted, values, depth + 1):
            return found
        values.pop()
    return None
