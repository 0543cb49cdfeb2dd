"""The address of a Redis or Valkey, one server or a Cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from strandline.config import from_environment
from strandline.errors import Invalid

_PORT = 6379
_EXAMPLE = "redis://host:6379/0 or redis+cluster://host:6379,host2:6379"


@dataclass(frozen=True)
class RedisAddress:
    """`hosts` are some nodes of a Cluster, or one server. The password is never shown."""

    hosts: tuple[tuple[str, int], ...]
    cluster: bool
    database: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, url: str) -> RedisAddress:
        """The address may contain a secret by mistake, so no error shows it."""
        try:
            parts = urlsplit(url)
            login, _, hosts = parts.netloc.rpartition("@")
            found = tuple(_host(host) for host in hosts.split(","))
            database = int(parts.path.removeprefix("/") or 0)
        except ValueError:
            raise Invalid(f"the Redis address must look like {_EXAMPLE}") from None
        if parts.scheme not in {"redis", "redis+cluster"} or parts.query or parts.fragment or database < 0:
            raise Invalid(f"the Redis address must look like {_EXAMPLE}")
        cluster = parts.scheme == "redis+cluster"
        if (cluster and database) or (not cluster and len(found) > 1):
            raise Invalid("a Redis Cluster has only database 0, and only redis+cluster:// takes several hosts")
        username, _, password = login.partition(":")
        return cls(found, cluster, database, unquote(username) or None, _secret(password))

    def __str__(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self.hosts)


def _host(text: str) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError(text)
    return parts.hostname, parts.port or _PORT


def _secret(given: str) -> str | None:
    if not given:
        return None
    scheme, _, variable = given.partition(":")
    if scheme != "env":
        raise Invalid("give the Redis password by reference: redis://user:env:NAME@host:6379")
    return from_environment("the Redis address", variable)
