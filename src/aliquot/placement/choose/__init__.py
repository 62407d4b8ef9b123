"""placement/choose."""
