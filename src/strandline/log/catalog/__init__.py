"""What exists: the port and one module per engine."""

from strandline.log.catalog.port import Catalog

__all__ = ["Catalog"]
