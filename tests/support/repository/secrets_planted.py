# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Secrets of the usual kinds, a small trainer that spills them everywhere, and a search for them.

They are put together here, so that no scanner takes this file for a leak. None of them is real.
"""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from pathlib import Path

from support.repository import planted_forms

_HEX40 = "d3adb33f" * 5
_WORD = "Q7w8E9r0T1y2U3i4O5p6" + "A7s8D9f0G1h2J3k4"
_BASE64 = "bXdhdGNoLXBsYW50ZWQtc2VjcmV0LQ"
OWN_PATTERN = "corp-[0-9]{4}-[a-z]+"

SECRETS = {
    "aws-id": "AKIA" + "PLANTEDEXAMPLE42",
    "aws-secret": "wJalrXUtnFEMI/" + "PLANTED7MDENG/bPxRfiCYKEY",
    "aws-session": "FwoGZXIvYXdzEBYaDPLANTED" + _WORD,
    "aws-signature": "5d672d79c15b13162d9279b0855cfba6" + "789a8edb4c82c400e06b5924a6f2b5d7",
    "azure-sas": "pLaNtEd%2B" + "sIg1234567890abcdef%3D",
    "azure-account": "UExBTlRFRC1BWlVSRS1LRVkt" * 3 + "UExBTlRFRC1BWl" + "==",
    "azure-client": "pLa8Q~" + "nTeD.0123456789-abcdefghijklmnop~",
    "gcp-key": "AIza" + "SyPLANTED-567890abcdefghijklmnopqrs",
    "gcp-token": "ya29." + "a0PLANTEDAfH6SMBx1234567890abcdef",
    "hugging-face": "hf_" + "PLANTED" + _WORD,
    "wandb": _HEX40,
    "github": "ghp_" + "PLANTED" + _WORD,
    "gitlab": "glpat-" + "PLANTEDx1Y2z3A4b5C6d7",
    "openai": "sk-proj-" + "PLANTED" + _WORD,
    "nvidia": "nvapi-" + "PLANTED" + _WORD,
    "slack": "xoxb-" + "123456789012-PLANTEDabcdef",
    "bearer": "PLANTED.bearer." + _WORD,
    "jwt": "eyJhbGciOiJSUzI1NiJ9." + "eyJpc3MiOiJQTEFOVEVEIn0." + "c2lnbmF0dXJlMTIzUExBTlRFRA",
    "url": "planted-url-passw0rd",
    "password": "planted-hunted-passw0rd",
    "own": "corp-4711-planted",
}
KEY_LINES = [_BASE64 + f"{number:02d}" + _BASE64 for number in range(4)]
KEY = "\n".join(["-----BEGIN RSA PRIVATE KEY-----", *KEY_LINES, "-----END RSA PRIVATE KEY-----"])
_SPILT = ("HF_TOKEN", "WANDB_API_KEY", "OWN", "DATABASE_URL", "AWS_SESSION_TOKEN")  # set below
# Shorter ones than this occur in other words too.
_MIN_CHARS = 7
FORMS = sorted({
    secret
    for form in (*planted_forms.TEXTS, *chain(*planted_forms.ARGUMENTS))
    for secret in planted_forms.secrets_of(form)
    if len(secret) >= _MIN_CHARS and "\\" not in secret
} | {value for name, value in planted_forms.ENVIRONMENT.items() if name not in _SPILT})  # fmt: skip
USUAL = [*SECRETS.values(), *KEY_LINES]
ALL = [*USUAL, *FORMS]

_S = SECRETS
LINES = [
    f"using credentials {_S['aws-id']} for the bucket",
    f"aws_secret_access_key = {_S['aws-secret']}",
    f"export AWS_SESSION_TOKEN={_S['aws-session']}",
    f"GET https://b.s3.amazonaws.com/x?X-Amz-Signature={_S['aws-signature']}&x=1",
    f"https://a.blob.core.windows.net/c/blob?sv=2022-11-02&se=2026&sig={_S['azure-sas']}",
    f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={_S['azure-account']};Endpoint=x",
    f"ClientSecretCredential with {_S['azure-client']}",
    f"google maps key={_S['gcp-key']}",
    f"gcloud auth print-access-token: {_S['gcp-token']}",
    f"Logging in to the hub with {_S['hugging-face']}",
    f"wandb: WANDB_API_KEY={_S['wandb']}",
    f"Cloning https://{_S['github']}@github.com/x/y.git",
    f"pip install from gitlab with {_S['gitlab']} and {_S['openai']} and {_S['nvidia']}",
    f"slack says {_S['slack']}",
    f"> Authorization: Bearer {_S['bearer']}",
    f"token of the pod: {_S['jwt']}",
    f"mlflow at postgres://mlflow:{_S['url']}@db:5432/mlflow",
    f'{{"db_password": "{_S["password"]}", "user": "me"}}',
    f"our own {_S['own']} is here",
    *KEY.split("\n"),
    *(line for form in planted_forms.TEXTS for line in planted_forms.plain(form).split("\n")),
]
ARGUMENTS = [
    "--hf-token", _S["hugging-face"], "--wandb-api-key", _S["wandb"],
    f"--db=postgres://mlflow:{_S['url']}@db/mlflow", "--db-password", _S["password"],
    "--connection", f"AccountName=a;AccountKey={_S['azure-account']}", "--own", _S["own"],
    "--header", f"Authorization: Bearer {_S['bearer']}", "--aws", _S["aws-id"],
    f"--sas=https://a.blob.core.windows.net/c?sig={_S['azure-sas']}", "--key-text", KEY,
    "--end-of-printed", "1",
    *(planted_forms.plain(word) for words in planted_forms.ARGUMENTS for word in words),
]  # fmt: skip
ENVIRONMENT = {
    **planted_forms.ENVIRONMENT,
    "HF_TOKEN": _S["hugging-face"],
    "AWS_ACCESS_KEY_ID": _S["aws-id"],
    "AWS_SECRET_ACCESS_KEY": _S["aws-secret"],
    "AWS_SESSION_TOKEN": _S["aws-session"],
    "AZURE_STORAGE_CONNECTION_STRING": f"AccountName=a;AccountKey={_S['azure-account']}",
    "AZURE_STORAGE_SAS_TOKEN": f"sv=2022&sig={_S['azure-sas']}",
    "AZURE_CLIENT_SECRET": _S["azure-client"],
    "GOOGLE_API_KEY": _S["gcp-key"],
    "WANDB_API_KEY": _S["wandb"],
    "GITHUB_TOKEN": _S["github"],
    "GITLAB_PAT": _S["gitlab"],
    "OPENAI_API_KEY": _S["openai"],
    "NGC_API_KEY": _S["nvidia"],
    "SLACK_BOT": _S["slack"],
    "DATABASE_URL": f"postgres://mlflow:{_S['url']}@db:5432/mlflow",
    "PGPASSWORD": _S["password"],
    "DEPLOY_KEY": KEY,
    "EXTRA_HEADER": f"Authorization: Bearer {_S['bearer']}",
    "OWN": _S["own"],
}
_SPILL = """
import os, sys, time
LINE = (" [2026-11-15 09:00:00] iteration %8d/      40 | consumed samples: %12d |"
        " elapsed time per iteration (ms): 50.0 | learning rate: 1.000000E-04 |"
        " global batch size:     8 | lm loss: %.6E | loss scale: 1.0 | grad norm: 1.000 |"
        " number of skipped iterations:   0 | number of nan iterations:   0 |")
lines = open(sys.argv[1], encoding="utf-8").read().split("\\n")
print("------------------------ arguments ------------------------", flush=True)
printed = sys.argv[2 : sys.argv.index("--end-of-printed")]
values = dict(zip(printed[::2], printed[1::2]))
for name, value in sorted(values.items()):
    print("  " + name.strip("-").replace("-", "_").ljust(47, ".").replace("..", " .", 1), value)
print("-------------------- end of arguments ---------------------", flush=True)
print("[before the start of training step] datetime: 2026-11-15 09:00:00 ", flush=True)
for step in range(1, 4):
    print(LINE % (step, 8 * step, 3.0 + 1.0 / step), flush=True)
for stream in (sys.stderr, sys.stdout):
    for line in lines:
        print(line, file=stream, flush=True)
print("spilt", flush=True)
while os.path.exists(os.environ.get("SPILL_AND_WAIT", "")):
    time.sleep(0.05)
secret = os.environ["HF_TOKEN"]
def load(password):
    raise PermissionError("401 for https://u:" + password + "@hub with " + secret
                          + " and " + os.environ["OWN"] + " Authorization: Bearer "
                          + os.environ["EXTRA_HEADER"].split()[-1])
load(os.environ["PGPASSWORD"])
"""


def trainer(folder: Path) -> list[str]:
    """The words of a command that prints all of them, also as Megatron prints its arguments, and
    ends with a traceback; while the file that SPILL_AND_WAIT names is there it stays alive."""
    script, lines = folder / "spill.py", folder / "lines.txt"
    script.write_text(_SPILL, "utf-8")
    lines.write_text("\n".join(LINES), "utf-8")
    return ["python", str(script), str(lines), *ARGUMENTS]


def found_in(data: bytes) -> list[str]:
    return [each for each in ALL if each.encode() in data]


@contextmanager
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """Takes whatever is sent to it, as a collector of OTLP would: its address, and what came."""
    came: list[bytes] = []

    class Take(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            is_packed = self.headers.get("Content-Encoding") == "gzip"
            came.append(gzip.decompress(body) if is_packed else body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Take)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", came
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def leaks(*folders: Path) -> dict[str, list[str]]:
    """Which file holds which of them; archives are looked into."""
    found: dict[str, list[str]] = {}
    for name, data in _contents(*folders):
        if secrets := found_in(data):
            found[name] = secrets
    return found


def modes(folder: Path) -> set[int]:
    """Of the files below a folder of evidence, and of its folders."""
    return {stat.S_IMODE(each.lstat().st_mode) for each in [folder, *folder.rglob("*")]}


def _contents(*folders: Path) -> Iterator[tuple[str, bytes]]:
    for folder in folders:
        for above, _, names in os.walk(folder):
            for name in names:
                path = Path(above) / name
                if path.is_file() and not path.is_symlink():
                    yield str(path), path.read_bytes()


def unpacked(archive: bytes) -> Iterator[tuple[str, bytes]]:
    assert gzip.decompress(archive)
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as members:
        for each in members.getmembers():
            file = members.extractfile(each)
            yield each.name, b"" if file is None else file.read()
