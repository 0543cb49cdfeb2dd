"""Refuses requests that a web page makes a browser send: from another origin, or to a name that it rebinds.

A node has no access control yet: whatever reaches its port may use it. A browser on the same machine reaches it on
behalf of every page that it shows. Three headers, which no page can set, show where such a request comes from:
`Host`, `Origin` and `Sec-Fetch-Site`. Programs other than browsers only send the first one.
"""

from __future__ import annotations

import ipaddress
import logging
import re
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from starlette.responses import Response
from starlette.types import Scope

from strandline.errors import Forbidden, Invalid, Malformed
from strandline.logging_setup import fields
from strandline.server.problems import problem

log = logging.getLogger(__name__)

#: Load balancers often send an address as `Host`. These routes show no data.
PROBES = frozenset({"/health", "/ready"})

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_ALL_ADDRESSES = ("0.0.0.0", "::")  # noqa: S104 - they are compared only
_ANY = "*"
_HOST = re.compile(r"(?:\[([^\]]+)\]|([^:\[\]]+))(?::[0-9]*)?").fullmatch
_NAME = re.compile(r"[\w.-]+").fullmatch
_WATCHED = frozenset({b"host", b"origin", b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest"})
# `none`: the user typed the address or opened a bookmark.
_OWN_SITES = frozenset({b"same-origin", b"none"})
# The values of `Host` that are remembered as accepted; clients send only a few, with and without a port.
_REMEMBERED = 64


class Guard:
    """Decides by the head of a request. `host` is the address that the node listens on, `hosts` is the setting."""

    def __init__(self, host: str, hosts: str) -> None:
        given = [name.strip() for name in hosts.split(",") if name.strip()]
        self._any = _ANY in given
        self._names = {*_LOOPBACK, *(_checked(name) for name in given if name != _ANY)}
        if _canonical(host) not in _ALL_ADDRESSES:
            self._names.add(_canonical(host))
        elif not given:
            log.warning("the node listens on all addresses, but server.hosts names none: other machines get 421")
        self._accepted: set[bytes] = set()

    def refusal(self, scope: Scope) -> Response | None:
        """The answer to a request that must not reach a route; None for all others."""
        found = [pair for pair in scope["headers"] if pair[0] in _WATCHED]
        if len(found) == 1 and found[0][0] == b"host" and found[0][1] in self._accepted:  # no browser
            return None
        headers: dict[bytes, list[bytes]] = {}
        for name, value in found:
            headers.setdefault(name, []).append(value)
        refused = self._wrong_host(scope, headers.get(b"host", [])) or _foreign(scope, headers)
        if refused is not None:
            more = fields(status=refused.status_code, flow_id=scope.get("flow_id"))
            log.warning("refused %s %s", scope["method"], quote(scope["path"]), extra=more)
        return refused

    def _wrong_host(self, scope: Scope, given: Sequence[bytes]) -> Response | None:
        if scope["path"] in PROBES:
            return None
        if len(given) != 1 or not given[0]:
            return problem(400, "the request must have one Host header", code=Malformed.code)
        if given[0] in self._accepted:
            return None
        text = given[0].decode("latin-1")
        if not self._any and _name_in(text) not in self._names:
            detail = (
                f"this node does not answer to the host {text[:200]!r}; add its name to the setting server.hosts"
            )
            return problem(421, detail)
        if len(self._accepted) < _REMEMBERED:
            self._accepted.add(given[0])
        return None


def _foreign(scope: Scope, headers: Mapping[bytes, Sequence[bytes]]) -> Response | None:
    """The refusal of a request that a page of another origin made the browser send."""
    host = b"".join(headers.get(b"host", ())).lower()
    for origin in headers.get(b"origin", ()):
        if origin.partition(b"://")[2].lower() != host:  # also `null`, the origin of a sandbox or a file
            text = origin.decode("latin-1")
            detail = f"a page of {text[:200]!r} must not use this node; only its own pages may"
            return problem(403, detail, code=Forbidden.code)
    if _OWN_SITES.issuperset(headers.get(b"sec-fetch-site", ())) or _is_link_to_start_page(scope, headers):
        return None
    detail = "a page of another site must not use this node; type its address into the browser instead"
    return problem(403, detail, code=Forbidden.code)


def _is_link_to_start_page(scope: Scope, headers: Mapping[bytes, Sequence[bytes]]) -> bool:
    """Whether the user followed a link. The page that has the link cannot read the answer."""
    opened = (headers.get(b"sec-fetch-mode"), headers.get(b"sec-fetch-dest"))
    return scope["path"] == "/" and scope["method"] == "GET" and opened == ([b"navigate"], [b"document"])


def _name_in(host: str) -> str | None:
    """The name in the value of a `Host` header, without its port; None if the value has another form."""
    found = _HOST(host)
    return found and _canonical(found[1] or found[2])


def _canonical(name: str) -> str:
    """One spelling of a name: lower case, without the dot of the root, an address in its short form."""
    name = name.lower().removesuffix(".")
    return _address(name) or name


def _address(text: str) -> str | None:
    """The short form of an IP address; None for a name."""
    try:
        return ipaddress.ip_address(text).compressed
    except ValueError:
        return None


def _checked(name: str) -> str:
    """A name of the setting; the brackets of an IPv6 address may be left out."""
    bare = name.removeprefix("[").removesuffix("]")
    if not _NAME(bare) and _address(bare) is None:
        raise Invalid(f"server.hosts must contain host names or addresses without ports, not {name!r}")
    return _canonical(bare)
