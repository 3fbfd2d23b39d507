"""``python -m ampedu`` is the command ``ampedu``."""

import sys

from ampedu.cli import main

sys.exit(main())
