"""Strandline: a timeline platform over one durable, partitioned event log."""

__version__ = "0.1.0"
