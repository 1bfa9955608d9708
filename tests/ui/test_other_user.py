"""Another user of the same machine at a dashboard: nothing of a signed run can be read, stopped or written by him."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import REPOSITORY
from tests.support.cluster_commands import until

SECRET = "the secret of this run: not for others"
DL4J = [sys.executable, "-m", "dl4jlegacy"]
OTHER = r"""
import encodings.idna, email.parser, glob, http.client, json, os, pwd, re, sys, urllib.error, urllib.request
nobody = pwd.getpwnam("nobody")
os.setgroups([])
os.setgid(nobody.pw_gid)
os.setuid(nobody.pw_uid)
url, pid, places = json.loads(sys.argv[1])
opened, said = [], ""
def ask(method, path, headers):
    global said
    request = urllib.request.Request(url + path, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            said += answer.read(100 if path.endswith("stream") else 1 << 20).decode("utf-8", "replace")
            return answer.status
    except urllib.error.HTTPError as exc:
        said += exc.read().decode("utf-8", "replace")
        return exc.code
def read(path):
    try:
        with open(path, "rb") as file:
            opened.append(path)
            return file.read(1 << 20).decode("utf-8", "replace")
    except OSError:
        return ""
process = [f"/proc/{pid}/{name}" for name in ("environ", "cmdline", "mem", "maps", "cwd", "fd")]
text = "".join(read(path) for place in [*process, *places] for path in [place, *glob.glob(f"{place}/*")])
for path in ("", "dashboard.js", "model.js"):
    ask("GET", path, {})
likely = sorted(set(re.findall(r"[A-Za-z0-9_-]{40,60}", text + said)))[:20]
page = {"origin": url.rstrip("/"), "sec-fetch-site": "same-origin"}
tried = [{}, page, {"x-dl4j-token": ""}, {"authorization": "Bearer "}, {"authorization": "Basic OjA="}]
tried += [{**page, "authorization": f"Bearer {token}", "x-dl4j-token": token} for token in likely]
looks = "run workers jobs history events log network model filters evaluation stream openapi.json"
changes = "stop save evaluate workers/x/drain"
asked = [("GET", f"api/v1/{name}") for name in looks.split()] + [("POST", f"api/v1/{name}") for name in changes.split()]
asked += [("GET", f"statetracker/{name}") for name in "minibatch jobs phase workers printmodel model.ser".split()]
asked += [("PUT", "statetracker/save"), ("POST", "statetracker/minibatch/1")]
answers = {f"{method} /{path}": [ask(method, path, headers) for headers in tried] for method, path in asked}
print(json.dumps({"user": os.getuid(), "opened": opened, "answers": answers, "said": said}))
"""
"""What he tries, with nothing but Python: the process's files, whatever looks like a token, every address."""


def as_nobody(*arguments: Any) -> dict[str, Any]:
    command = [sys.executable, "-I", "-c", OTHER, json.dumps(arguments)]
    done = subprocess.run(command, cwd="/", env={}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("is_signed", [True, False], ids=["signed", "unsigned"])
@pytest.mark.everyday(1)
def test_another_user_of_the_machine_can_do_nothing_at_a_dashboard(is_signed: bool, tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("did not run: only root can become another user")
    env = {name: value for name, value in os.environ.items() if not name.startswith("DL4J_")} | {"DL4J_UI_PORT": "0"}
    env |= {"DL4J_SECRET": SECRET} if is_signed else {}
    words = ["train", "--model", "mlp", "--dataset", "iris", "--epochs", "1000000", "--log-format", "json", "--ui"]
    log, env["PYTHONPATH"] = tmp_path / "log", str(REPOSITORY)
    with log.open("w") as err, subprocess.Popen([*DL4J, *words], stdout=err, stderr=err, env=env, cwd=tmp_path) as run:
        try:
            until(lambda: '"progress"' in log.read_text() or run.poll() is not None)
            (said,) = [json.loads(line) for line in log.read_text().splitlines() if '"dashboard"' in line]
            token_file = Path(said["token_file"])
            assert (token_file.stat().st_mode & 0o777, token_file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
            token = token_file.read_text().strip()
            found = as_nobody(said["url"], run.pid, [str(token_file), str(token_file.parent), str(tmp_path), str(log)])
            assert found["user"] != 0 and str(token_file) not in found["opened"]
            assert token not in json.dumps(found) and SECRET not in json.dumps(found)
            changed = {status for what, given in found["answers"].items() for status in given if "GET" not in what}
            looked = {status for what, given in found["answers"].items() for status in given if "GET" in what}
            assert changed == {401} and (looked == {401} if is_signed else 200 in looked)
            assert run.poll() is None and list(tmp_path.glob("**/*.zip")) == [], "it was neither stopped nor saved"
            assert is_signed != ('{"run":{' in found["said"]), "without a secret everybody here may look"
        finally:
            run.kill()
