"""The HTTP server: one process is one node."""
