"""Location of this package."""

import os

FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
