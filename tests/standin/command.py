"""``python -m standin.command GPUS ARGUMENT...``: the command line on a machine with so many stand-in GPUs."""

from __future__ import annotations

import sys

from dl4jlegacy.cli import main
from dl4jlegacy.kernels import cublas
from standin import DeviceConf, installed, launch
from standin.cublas import FakeCublas

if __name__ == "__main__":
    cards = [DeviceConf(uuid=bytes([number] * 16)) for number in range(int(sys.argv[1]))]
    cublas.load_library = lambda xp: FakeCublas(launch)  # type: ignore[assignment,return-value]
    with installed(*cards):
        main(sys.argv[2:])
