"""What was seen of the papers' claims."""
