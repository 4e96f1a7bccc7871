"""Wikipedia: articles to sentences."""
