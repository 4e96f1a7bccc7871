"""The kinds of steps: a file each, with a function that makes the step and the workers that do it."""
