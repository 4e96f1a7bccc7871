"""What makes CPUs fast."""
