"""`python -m stpn` is the `stpn` command."""

import sys

from stpn.cli import main

if __name__ == "__main__":
    sys.exit(main())
