"""A server that is a process of its own and drains quickly: `python tests/serve/child.py plain | slow`.

With `slow` it predicts for two minutes, in a thread.
"""

import sys
import time

from running import MODELS, service

from elman.serve import server

if __name__ == "__main__":
    server.DRAIN, server.CUT = 0.5, 2
    predictors = {"slow": lambda *_: time.sleep(120)} if sys.argv[1] == "slow" else {}
    sys.exit(server.serve(service(MODELS, predictors=predictors), "127.0.0.1", 0))
