"""The fan-out: posts of an event type reach the feeds of their authors' followers."""
