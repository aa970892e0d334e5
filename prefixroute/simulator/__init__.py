"""Replays a trace on simulated replicas, through the product's own core and the peers' rules."""
