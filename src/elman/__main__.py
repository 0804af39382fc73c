"""python -m elman: the same as the command `elman`."""

import sys

from elman.cli import main

sys.exit(main())
