"""The archive: the log as hourly files, with flags that say when a period is complete."""
