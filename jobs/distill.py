"""Distil a student from trained models as a Ray job. Takes the arguments of ``raysts distill``.

ray job submit --working-dir . -- python jobs/distill.py --from-run quickstart --top 3
"""

import sys

from raysts.cli import main

if __name__ == "__main__":
    main(["distill", *sys.argv[1:]])
