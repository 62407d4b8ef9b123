"""placement/queues."""
