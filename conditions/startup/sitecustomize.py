"""Executed when a process of the command starts, because its folder is in PYTHONPATH."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
from conditions import hook

hook.install()
