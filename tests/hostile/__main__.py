"""`make fuzz`: thousands of damaged inputs for every command and format.

python -m tests.hostile --cases 200 --seed 1 --only corpus-jsonl
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import torch

os.environ["HF_HUB_OFFLINE"] = "1"  # a name that is no folder must not be asked for anywhere

from .campaign import main
from .targets import TARGETS, warm_up

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--cases", type=int, default=200, help="for each target")
parser.add_argument("--interruptions", type=int, help="of each command; a fifth of the cases by default")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--only", default="", help="targets whose name begins like this; several, separated by commas")
arguments = parser.parse_args()
torch.set_num_threads(1)
warm_up()
with tempfile.TemporaryDirectory() as folder:
    chosen = [target for target in TARGETS if target.name.startswith(tuple(arguments.only.split(",")))]
    interruptions = arguments.cases // 5 if arguments.interruptions is None else arguments.interruptions
    raise SystemExit(main(chosen, Path(folder), arguments.cases, interruptions, arguments.seed))
