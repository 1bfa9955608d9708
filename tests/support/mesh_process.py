"""A process of the mesh, called by its argument; takes lines ``members NAME=ADDRESS ...`` and ``commit TEXT``."""

from __future__ import annotations

import sys

from dl4jlegacy.scaleout.links.mesh.configuration import VoidConfiguration
from dl4jlegacy.scaleout.links.mesh.node import Member, MeshNode


def main() -> None:
    node = MeshNode(
        "127.0.0.1",
        name=sys.argv[1],
        run="run",
        secret=b"a secret of this test",
        configuration=VoidConfiguration(mesh_build_mode="mesh"),
        on_change=lambda event, what: print(event, what, flush=True),
    )
    with node:
        print("address", node.address, flush=True)
        for line in sys.stdin:
            word, *rest = line.split()
            if word == "members":
                node.set_members([Member(*member.split("=")) for member in rest])
            else:
                node.commit(rest[0].encode())


if __name__ == "__main__":
    main()
