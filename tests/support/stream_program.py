"""`quorate stream` without the thread that pays, for tests without a whole coordinator."""

import sys

from quorate.cli import stream

if __name__ == "__main__":
    stream.KEEP_AFTER_SECONDS = 3600.0
    status = stream.run(sys.argv[1:])
    assert status is not None, "the profile has a token"
    sys.exit(status)
