"""Which route serves a path, and the parameters of the path."""

from __future__ import annotations

from urllib.parse import unquote

import pytest

from strandline.server.route_table import Route, RouteTable

PATHS = ["/", "/archive", "/archive/periods", "/archive/{name}/hours", "/archive/{name}/hours/{hour}", "/{page}"]
TABLE = RouteTable(Route(path, {}) for path in PATHS)


@pytest.mark.parametrize(
    ("path", "route", "parameters"),
    [
        ("/", "/", {}),
        ("/archive", "/archive", {}),
        ("/archive/periods", "/archive/periods", {}),
        ("/archive/orders/hours", "/archive/{name}/hours", {"name": "orders"}),
        ("/archive/orders/hours/7", "/archive/{name}/hours/{hour}", {"name": "orders", "hour": "7"}),
        ("/archive/a b+ü%/hours", "/archive/{name}/hours", {"name": "a b+ü%"}),
        ("/about", "/{page}", {"page": "about"}),
        # A parameter can have the value of a literal part at the same place.
        ("/archive/periods/hours", "/archive/{name}/hours", {"name": "periods"}),
        ("/archive/hours/hours", "/archive/{name}/hours", {"name": "hours"}),
    ],
)
def test_a_path_has_its_route(path, route, parameters):
    """A literal part wins over a parameter, if the rest of the path matches."""
    found = TABLE.find(path)
    assert found is not None
    assert (found[0].path, found[1]) == (route, parameters)


@pytest.mark.parametrize(
    ("raw_path", "hour"),
    [
        (b"/archive/orders/hours/a%2Fb", "a/b"),
        (b"/archive/orders/hours/%2f%2F/", "//"),
        (b"/archive/orders/hours/%C3%BC%2F%20%25", "ü/ %"),
    ],
)
def test_an_encoded_slash_does_not_end_a_part(raw_path, hour):
    """The value of a parameter can contain any character."""
    found = TABLE.find(unquote(raw_path.decode()), raw_path)
    assert found is not None
    assert found[1] == {"name": "orders", "hour": hour}


@pytest.mark.parametrize(
    "path",
    ["", "*", "//", "/archive/", "/archive//hours", "/archive/orders", "/archive/orders/hours/7/8", "/Archive/a"],
)
def test_other_paths_have_none(path):
    """A parameter is not empty, and no part is left over."""
    assert TABLE.find(path) is None


def test_head_is_served_where_get_is():
    """HEAD is allowed for every route that has GET."""

    async def serve(*_: object) -> None: ...

    assert Route("/", {"GET": serve, "PUT": serve}).methods == {"GET", "HEAD", "PUT"}
    assert Route("/", {"PUT": serve}).methods == {"PUT"}


def test_of_several_routes_one_that_serves_the_method_is_found():
    """`/feeds/get` is a route of its own, and the feed `get` has the routes of a feed."""

    async def serve(*_: object) -> None: ...

    table = RouteTable(
        [Route("/feeds/get", {"POST": serve}), Route("/feeds/{feed}", {"GET": serve, "PUT": serve})]
    )
    found = {method: table.find("/feeds/get", b"", method) for method in ("POST", "PUT", "HEAD", "DELETE")}
    assert {method: (route.path, parameters) for method, (route, parameters) in found.items()} == {
        "POST": ("/feeds/get", {}),
        "PUT": ("/feeds/{feed}", {"feed": "get"}),
        "HEAD": ("/feeds/{feed}", {"feed": "get"}),
        "DELETE": ("/feeds/get", {}),
    }


def test_a_literal_is_a_parameter_only_if_it_has_its_form():
    """`latest` is no number, so that PUT is not allowed for it."""

    async def serve(*_: object) -> None: ...

    routes = [
        Route("/snapshots/latest", {"GET": serve}),
        Route("/snapshots/{number}", {"GET": serve, "PUT": serve}),
    ]
    table = RouteTable(routes, {"number": "^[0-9]+$"})
    found = {text: table.find(f"/snapshots/{text}", b"", "PUT") for text in ("latest", "7", "x")}
    assert {text: (route.path, parameters) for text, (route, parameters) in found.items()} == {
        "latest": ("/snapshots/latest", {}),
        "7": ("/snapshots/{number}", {"number": "7"}),
        "x": ("/snapshots/{number}", {"number": "x"}),
    }
