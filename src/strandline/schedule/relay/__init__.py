"""A relay: a delay between two event types. Events of the source wait in a schedule, then go to the target."""
