"""What the archive has decided: the port and its SQL adapter."""

from strandline.archive.ledger.port import HourBook, Leases, Ledger, PeriodBook

__all__ = ["HourBook", "Leases", "Ledger", "PeriodBook"]
