"""kubernetes/cluster."""
