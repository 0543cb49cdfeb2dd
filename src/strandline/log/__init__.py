"""The log room."""
