"""Storage of runs: a folder, or an object store with a mirror on this machine."""
