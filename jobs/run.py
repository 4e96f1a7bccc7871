"""Run a pipeline as a Ray job. Takes the arguments of ``raysts run``.

ray job submit --working-dir . -- python jobs/run.py quickstart
"""

import sys

from raysts.cli import main

if __name__ == "__main__":
    main(["run", *sys.argv[1:]])
