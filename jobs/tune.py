"""Run a search as a Ray job. Takes the arguments of ``raysts tune``.

ray job submit --working-dir . -- python jobs/tune.py latte-mix --storage /shared/raysts-storage
"""

import sys

from raysts.cli import main

if __name__ == "__main__":
    main(["tune", *sys.argv[1:]])
