"""placement/core."""
