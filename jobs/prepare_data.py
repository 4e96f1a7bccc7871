"""Prepare Wikipedia sentences as a Ray job. Takes the arguments of ``raysts data prepare wikipedia``.

ray job submit --working-dir . -- python jobs/prepare_data.py --data /shared/data --sample 100000
"""

import sys

from raysts.cli import main

if __name__ == "__main__":
    main(["data", "prepare", "wikipedia", *sys.argv[1:]])
