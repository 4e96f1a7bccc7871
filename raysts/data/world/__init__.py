"""The embedded world: generated sentences whose labels follow from their meaning."""
