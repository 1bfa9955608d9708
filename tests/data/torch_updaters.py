"""Records steps of ``torch.optim`` for ``tests/nn/test_updater_steps.py``: ``python torch_updaters.py OUT.json``.

Recorded with PyTorch 2.15.0 on a CPU, float32. AdaGrad and RmsProp begin where ND4J's do.
"""

import json
import math
import sys

import torch

N, STEPS = 6, 10


def gradient(t):
    return torch.tensor([10.0 ** -(i % 6) * math.cos(1.7 * t + i) for i in range(N)], dtype=torch.float32)


def rms_prop(params, epsilon, **fields):
    made = torch.optim.RMSprop(params, lr=0.1, eps=epsilon, **fields)
    for p in params:
        made.state[p] = {"step": torch.zeros(()), "square_avg": torch.full_like(p, epsilon)}
    return made


KINDS = {
    "Sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "Nesterovs": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.8, nesterov=True),
    "AdaGrad": lambda p: torch.optim.Adagrad(p, lr=0.1, eps=1e-6, initial_accumulator_value=1e-6),
    "AdaGrad epsilon": lambda p: torch.optim.Adagrad(p, lr=0.1, eps=0.01, initial_accumulator_value=1e-6),
    "RmsProp": lambda p: rms_prop(p, 1e-8, alpha=0.95),
    "RmsProp epsilon": lambda p: rms_prop(p, 0.01, alpha=0.9),
    "AdaDelta": lambda p: torch.optim.Adadelta(p, lr=1.0, rho=0.95, eps=1e-6),
}


def main(path):
    found = {}
    for name, make in KINDS.items():
        params = torch.zeros(N, requires_grad=True)
        optimizer, steps = make([params]), []
        for t in range(STEPS):
            params.data.zero_()
            params.grad = gradient(t)
            optimizer.step()
            steps.append([float(f"{-x:.9g}") for x in params.tolist()])
        found[name] = {"steps": steps}
    with open(path, "w") as file:
        file.write(
            "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(each)}" for name, each in found.items()) + "\n}\n"
        )


main(sys.argv[1])
