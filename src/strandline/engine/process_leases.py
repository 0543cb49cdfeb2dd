"""Which process does what, in a database that all processes share.

A room has two tables, of its processes and of their leases. Its `.sql` file includes `process_leases.sql`, which
has the statements that are run here.
"""

from __future__ import annotations

from strandline.engine.database import LeaseClock, Tables, Transaction


class ProcessLeases:
    """Leases expire if a process does not renew them. They only make double work rare."""

    def __init__(self, tables: Tables, clock: LeaseClock, lease_ms: int, name: str) -> None:
        self._tables = tables
        self._clock = clock
        self._lease_ms = lease_ms
        self._name = name

    def renew(self, owner: str, progress: str = "") -> None:
        """Extend all leases of a process, or register it; `owners` returns the progress."""

        def work(tx: Transaction) -> None:
            expires_ms = self._expire_owners(tx) + self._lease_ms
            tx.run("renew", owner=owner, boot=self._clock.boot, expires_ms=expires_ms, progress=progress)

        self._tables.transaction(work)

    def owners(self) -> dict[str, str]:
        """The latest progress of every process that is alive, by owner."""
        return dict(self._tables.fetch("owners", **self._clock.parameters()))

    def take(self, owner: str, name: str) -> bool:
        """Take a lease that is free or that the owner has already.

        False if another process that is alive has it, or if the owner is not registered.
        """
        # In most calls the owner has the lease already; finding that out needs no commit.
        if self._tables.fetch("has_lease", name=name, owner=owner, **self._clock.parameters()):
            return True

        def work(tx: Transaction) -> bool:
            self._expire_owners(tx)
            return bool(tx.run("take", name=name, owner=owner))

        return self._tables.transaction(work)

    def _expire_owners(self, tx: Transaction) -> int:
        """Delete owners that have expired, with their leases. Returns the current time."""
        tx.run("lock", name=self._name, seed=0)
        now_ms = self._clock.now_ms(tx)
        tx.run("expire_owners", boot=self._clock.boot, now_ms=now_ms)
        return now_ms

    def release(self, owner: str, name: str) -> None:
        """Release a lease. No effect if another process has it."""
        self._tables.transaction(lambda tx: tx.run("release", owner=owner, name=name))

    def leave(self, owner: str) -> None:
        """Release all leases and remove the process."""
        self._tables.transaction(lambda tx: tx.run("leave", owner=owner))
