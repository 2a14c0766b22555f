"""Pipeline schedules: the order in which each device runs its tasks, and when that is."""
