"""placement/gangs."""
