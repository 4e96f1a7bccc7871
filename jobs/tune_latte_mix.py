"""Search the settings of Latte-Mix as a Ray job. Takes the arguments of ``raysts tune latte-mix``.

ray job submit --working-dir . -- python jobs/tune_latte_mix.py --storage /shared/raysts-storage
"""

import sys

from raysts.cli import main

if __name__ == "__main__":
    main(["tune", "latte-mix", *sys.argv[1:]])
