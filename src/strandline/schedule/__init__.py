"""Messages at a moment in time, delivered under leases."""
