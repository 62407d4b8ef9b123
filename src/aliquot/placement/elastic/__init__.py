"""placement/elastic."""
