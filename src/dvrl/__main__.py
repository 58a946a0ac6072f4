"""`python -m dvrl` is `dvrl`."""

import sys

from dvrl.cli import main

sys.exit(main())
