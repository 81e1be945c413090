"""In PYTHONPATH: the interpreter does not find the packages that `support.only` leaves out."""

import os
import sys

sys.modules |= dict.fromkeys(os.environ["NOT_INSTALLED"].split())
