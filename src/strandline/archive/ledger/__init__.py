"""What the archive has decided: the port and one module per engine."""

from strandline.archive.ledger.port import HourBook, Leases, Ledger, PeriodBook

__all__ = ["HourBook", "Leases", "Ledger", "PeriodBook"]
