"""The command line as a module: `python -m mucudnn`."""

import sys

from mucudnn.cli import main

sys.exit(main())
