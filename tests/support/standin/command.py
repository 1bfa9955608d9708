"""``python -m tests.support.standin.command GPUS ARGUMENT...``: the command line where there are so many stand-in GPUs.

They are called what the environment variable ``STANDIN_GPU`` says.
"""

from __future__ import annotations

import os
import sys

from dl4jlegacy.cli.main import main
from tests.support.standin import DeviceConf, installed

if __name__ == "__main__":
    name = os.environ.get("STANDIN_GPU", "Stand-in GPU")
    cards = [DeviceConf(name, uuid=bytes([number] * 16)) for number in range(int(sys.argv[1]))]
    with installed(*cards):
        main(sys.argv[2:])
