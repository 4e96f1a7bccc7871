"""What is measured, and how sure we are."""
