"""The queues that the schedule is compared with: how they are fetched, started and driven."""
