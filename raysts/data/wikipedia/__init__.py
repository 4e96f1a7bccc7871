"""Wikipedia: markup and articles to sentences."""
