"""What is known of every objective before anything is trained; a file each."""
