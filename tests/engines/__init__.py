"""Real inference engines as test doubles that are not doubles: setup, replicas and a workload."""
