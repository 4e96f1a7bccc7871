"""Search the lower bound of the regression target as a Ray job. Takes the arguments of ``raysts tune lower-bound``.

ray job submit --working-dir . -- python jobs/tune_lower_bound.py --storage /shared/raysts-storage
"""

import sys

from raysts.cli import main

if __name__ == "__main__":
    main(["tune", "lower-bound", *sys.argv[1:]])
