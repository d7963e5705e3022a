# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Secrets go, everything else stays: the near misses are what training jobs print all day."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mwatch_trainer.scrub.own_patterns import compiled
from mwatch_trainer.scrub.scrubber import Scrubber, scrub_text

CORPUS = Path(__file__).parents[2] / "corpus"
# Put together here, so that no scanner takes this file for a leak.
HEX40 = "0123456789abcdef0123" * 2
WORD36 = "A1b2C3d4E5f6G7h8I9j0" + "K1l2M3n4O5p6Q7r8"
SECRETS = [
    ("id {AKIA" + "IOSFODNN7EXAMPL3} of", "aws-key"),
    ("aws_secret_access_key = {wJalrXUtnFEMI/" + "K7MDENG/bPxRfiCYEXAMPLEKEY}", "password"),
    ("AWS_SESSION_TOKEN={FwoGZXIvYXdzEBYaD" + WORD36 + "}", "token"),
    ("https://b.s3.amazonaws.com/x?X-Amz-Signature={" + HEX40 + "}&x=1", "signature"),
    ("key={AIza" + "SyA-1234567890abcdefghijklmnopqrstu}", "google-key"),
    ("token {ya29." + "a0AfH6SMBx1234567890abcdef}", "google-token"),
    (
        "https://a.blob.core.windows.net/c?sv=2022&sig={abc%2B" + "def1234567890%3D}&se=1",
        "signature",
    ),
    ("EndpointSuffix=x;AccountKey={" + "Zm9vYmFyYmF6cXV4" * 5 + "==};", "password"),
    ("login with {hf_" + WORD36 + "}", "hugging-face"),
    ("WANDB_API_KEY={" + HEX40 + "}", "wandb"),
    ("wandb login {" + HEX40 + "}", "wandb"),
    ("wandb: {wandb_v1_" + WORD36 + "}", "wandb"),
    ("remote: {ghp_" + WORD36 + "}", "github"),
    ("{github_pat_" + "11ABCDEFG0" + WORD36 + "}", "github"),
    ("{glpat-" + "x1Y2z3A4b5C6d7E8f9G0}", "gitlab"),
    ("SLACK {xoxb-" + "123456789012-abcdefABCDEF}", "slack"),
    ("https://hooks.slack.com/services/{T0001/B0001/" + "abcdefABCDEF123456}", "webhook"),
    ("OPENAI {sk-proj-" + WORD36 + "}", "api-key"),
    ("key: {sk-ant-api03-" + WORD36 + "}", "api-key"),
    ("{nvapi-" + WORD36 + WORD36 + "}", "nvidia"),
    ("Authorization: Bearer {" + WORD36 + "}", "header"),
    ("curl -H 'authorization: Basic {dXNlcjpwYXNz" + "d29yZA==}' x", "header"),
    ("{eyJhbGciOiJSUzI1NiJ9." + "eyJpc3MiOiJrdWJlcm5ldGVz." + "c2lnbmF0dXJlMTIz}", "jwt"),
    ("cloning https://user:{hunter2}@github.com/x.git", "url"),
    ("postgres://mlflow:{s3cr%40t}@db:5432/mlflow", "url"),
    ("https://{" + WORD36 + "}@github.com/x.git", "url"),
    ("password={hunter2}", "password"),
    ('"db_password": "{correct-horse}"', "password"),
    ("  wandb_api_key ................................... {abcd1234efgh}", "password"),
    ("client_secret: {Xy8~Q1234567890}", "secret"),
    ("NGC_API_KEY='{bnZhcGk6MTIzNDU2}'", "password"),
    ("python x.py --db-password {hunter2} --lr 1", "flag"),
    ("--hf-token {abcd1234abcd}", "flag"),
    ("MY_TOKEN={" + WORD36 + "}", "token"),
    ("{dapi" + "0123456789abcdef" * 2 + "}", "databricks"),
    ("refreshed {1//0" + "gAbCdEfGhIjKl-" + WORD36 + "} now", "google-token"),
    ("GET /b?AWSAccessKeyId=x&Signature={abc%2B" + "def1234567890%3D}&Expires=1", "signature"),
    ("x AWS4-HMAC-SHA256 SignedHeaders=host, Signature={" + HEX40 + "}", "signature"),
    ("the key is {" + "Zm9vYmFyYmF6cXV4" * 5 + "Zm9vYm==}, keep it", "azure-key"),
    ("{Abc8Q~" + "x" * 33 + "}", "azure-client"),
    ("id {LTAI" + "5tAbCdEfGhIjKlMnOp}", "alibaba"),
    ("groq {gsk_" + WORD36 + "}", "api-key"),
    ("xai {xai-" + WORD36 + "}", "api-key"),
    ("NEPTUNE {eyJhcGlf" + "YWRkcmVzcyI6Imh0dHBzOi8vYXBwLm5lcHR1bmUuYWkifQ==}", "neptune"),
    ('wandb.login(key="{' + HEX40 + '}")', "wandb"),
    ('{"auths": {"r.io": {"auth": "{dXNlcjpwYXNzd29yZA==}"}}}'.replace("{dX", "<dX")
     .replace("==}", "==>"), "registry"),
    ("Set-Cookie: {session=abcdefgh12345678; Path=/}", "cookie"),
    ("+ curl -s -u me:{hunter2} https://x", "flag"),
    ("machine api.wandb.ai login user password {abcdef0123456789}", "netrc"),
    ("Ocp-Apim-Subscription-Key: {0123456789abcdef}", "password"),
    ("--account-key {" + "Zm9vYmFy" * 3 + "} --lr 1", "flag"),
    ("--wandb-token {" + WORD36 + "}", "flag"),
    ("--ssh-key {" + WORD36 + "}", "flag"),
    ('inner \\"api_key\\": \\"{correcthorse}\\", next', "password"),
]  # fmt: skip


@pytest.mark.parametrize(("marked", "kind"), SECRETS)
def test_a_secret_is_taken_out_and_the_rest_of_the_line_stays(marked: str, kind: str) -> None:
    begin, end = ("<", ">") if "<" in marked else ("{", "}")
    before, _, rest = marked.partition(begin)
    secret, _, after = rest.partition(end)
    assert scrub_text(before + secret + after) == f"{before}[scrubbed {kind}]{after}"


NEAR = [
    " [2025-09-07 23:58:47] iteration      610/  500000 | consumed samples:        19520 | elapsed"
    " time per iteration (ms): 436.7 | throughput per GPU (TFLOP/s/GPU): 400.1 | learning rate:"
    " 5.999998E-05 | lm loss: 6.002230E+00 | loss scale: 131072.0 | grad norm: 0.791 |",
    "commit 3f786850e387550fdab836ed7e6dc881de23001b (HEAD -> main)",
    "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  iter_0000100/x.pt",
    "  tokenizer_type .................................. HuggingFaceTokenizer",
    "  hf_tokenizer_name_or_path_of_the_model_that_is_used ... meta-llama/Llama-3.1-8B",
    "  tokenizer_model ................................. mistralai/Mixtral-8x7B-Instruct-v0.1",
    "bos_token='<s>', eos_token='</s>', unk_token: <unk>, pad_token=None, 'sep_token': '<|end|>'",
    "time per token: 0.000123456789012345, per token = 1.2345678901234567e-05 s",
    "pad_token_id = 151643, eos_token_id: 128001, max_token=32768",
    "tokens: 1234567890123456, token: 42",
    "  encoder_num_layers ... None  wandb_api_key ................................ None",
    "password: None, secret=null, api_key: <set>, token=$HF_TOKEN, password=${DB_PASSWORD}",
    "Initialized host worker-0 as tcp://10.0.0.1:29500, file:///ckpt:0/iter@100",
    "http://localhost:9401/metrics and https://github.com/NVIDIA/Megatron-LM/issues/1234",
    "NCCL INFO comm 0x55d0c8a3b2f0 rank 3 nranks 8 cudaDev 3 busId 1b000 commId 0x9f1e2d3c4b5a6978",
    "keyError: 'key', key = value, keys: ['attention.linear_qkv.weight', 'decoder.layers.0']",
    "secret \"wandb-key\" not found; the token was refused; password authentication failed",
    "task-distribution-1234567890abcdef1234 on desk-0001-0002-0003-0004-0005",
    "scikit sk-learn-contrib-package-and-more-words is not installed",
    "HEAD is now at 3f786850e387550fdab836ed7e6dc881de23001b Merge branch 'main'",
    "Megatron-LM revision core_r0.12.0-87-g3f786850e, TransformerEngine 2.1.0.dev0+8eb1712",
    "worker-3:412:988 [2] NCCL INFO comm 0x5581e04bb2c0 rank 19 nRanks 64 nNodes 8 localRanks 8"
    " localRank 3 MNNVL 0",
    "worker-0:71:71 [0] NCCL INFO ncclCommInitRank comm 0x8f0a1b0 rank 0 nranks 8 commId"
    " 0xfeb3c1d5e2b84609 - Init START",
    "NCCL unique id: 02000000c0a80a0d0000000000000000000000000000000000000000a1b2c3d4e5f60718",
    "ranks [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15] of group 7 (default_pg)",
    "GPU-4d1f8c2e-83a1-4b7c-9d20-5f6e7a8b9c0d: Xid 79, MIG-6f0c8d1a-2b3c-5d4e-8f90-1a2b3c4d5e6f",
    "saved checkpoint to /ckpt/run-7B_tp8pp4_bs1024/iter_0005000 at"
    " 2026-01-02T03:04:05.678901+00:00",
    "/root/.cache/huggingface/hub/models--meta-llama--Llama-3.1-8B/snapshots/d04e592bb4f6aa9cfee9"
    "1e2e20afa771667e1d4b/config.json",
    "/tmp/torchinductor_root/ku/ckuo4jwbgvyjtt2dphkmqrx5wzvjlyscv3xqdbkoq2z7rxlw2akf.py",
    "/root/.triton/cache/WNR2MKTS5ZQH6ALVVBCPLM3GNTPKQ4ZPIUDRWJ3EPZV5LE7VQLNA/_fwd_kernel.cubin",
    "frame #4: _ZN5torch8autograd6Engine17evaluate_functionERSt10shared_ptrINS0_9GraphTaskEEPNS0_"
    "4NodeE + 0x7f",
    "void cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_nn_align8 took 1.23 ms",
    "ampere_fp16_s16816gemm_fp16_128x256_ldg8_f2f_stages_64x3_nt,"
    " sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n",
    "pulling nvcr.io/nvidia/pytorch@sha256:9b2a1e0c4d5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4"
    "b5c6d7e8f9",
    "cri-containerd-9b2a1e0c4d5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8f9.scope:"
    " oom-kill",
    "pod train-7b-worker-0-x7k2p on node ip-10-0-12-34.ec2.internal, uid"
    " 6f0c8d1a-2b3c-4d4e-8f90-1a2b3c4d5e6f",
    "wandb: Syncing run amber-frost-17, /ckpt/wandb/run-20260102_030405-ab12cd34/files",
    "building GPTDataset-train-indices from"
    " cache/4b825dc642cb6eb9a060e54bf8d69288-GPTDataset-train-document_index.npy",
    "MD5 of the dataset: 4b825dc642cb6eb9a060e54bf8d69288; seed 1234;"
    " md5_4b825dc642cb6eb9a060e54bf8d69288ab",
    "mlx5_0 port 1 GUID 0xb8cef60300fb8b1a, link_layer InfiniBand, rate 400 Gb/sec (4X NDR)",
    "ray actor a1b2c3d4e5f60718293a4b5c01000000 died;"
    " worker_a1b2c3d4e5f60718293a4b5c01000000ffffffffffff",
    "DistributedOptimizer(bucket_size=40000000, overlap_grad_reduce=True,"
    " use_distributed_optimizer=True)",
    "ProcessGroupNCCLHeartbeatMonitor2: TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=600"
    " TORCH_NCCL_ASYNC_ERROR_HANDLING=3",
    "    tokenizer_model ................................."
    " /models/Meta-Llama-3.1-70B-Instruct-HF-v2",
    "  nccl_communicator_config_path ................... None\n  rampup_batch_size"
    " ............................... ['32', '32', '65535']",
    "number of parameters on (tensor, pipeline) model parallel rank (3, 7): 1015414784",
    "data_parallel_random_init False, moe-token-dispatcher-type alltoall,"
    " attention_softmax_in_fp32 True",
    "Elapsed 0:12:34, key 'decoder.layers.31.mlp.linear_fc2._extra_state/shard_15_32' was not"
    " found",
    "password file /etc/x.yaml is missing; the password is required; secrets: 3 mounted",
    "session 20260102T030405Z; trace_id=4bf92f3577b34da6a3ce929d0e0e4736 span_id=00f067aa0ba902b7",
    "rdzv_id=6f0c8d1a-2b3c-4d4e-8f90-1a2b3c4d5e6f rdzv_endpoint=train-master-0.train:29500"
    " restarts 0/3",
    "UUIDs: 8a4f0e2c-1d3b-4c5d-9e6f-708192a3b4c5, boot_id 0f1e2d3c4b5a69788796a5b4c3d2e1f0",
    "loaded libnvidia-ml.so.550.54.15, libcudart-9335f6a2.so.12, nvidia_cublas_cu12-12.4.5.8",
    "consumed 12% (3D view), progress 100%22 of 40%, see https://x.example/a?q=1%3A2%2C3&b=2",
    "Exit code: 137; exit code is 1; error code: 0x80000007; code=255",
    "GET /metrics?format=prom&amp;x=1 &quot;200&quot; OK",
    "=" * 120 + " == " + "=" * 88 + " a == b, c==",
    "--ckpt-step 1000 --key-value /data/key --sort-key name1 --special-token <extra_id_0>",
    "--tokenizer-model /models/llama-3.1-8b --bos-token <s> --token-count 1234567890123456789",
    "wandb: synced 5 files; key: 0123; cookie cutter; Cookies: none; curl -u is not used here",
    "eyJ is how such a token begins; LTAIonly letters; 11//0 of the files; signature=(x, y)",
    "pass=3 pass=train pass: test_a1, PASS: TestFoo2 (0.1s) pass=iter_0001 forward_pass=abc123"
    " bypass=a1b2c3, 3 of 4 tests pass: user=1.2 sys=0.3 pass=2",
    "password authentication failed for user 'postgres', password prompt \"Password: \", next",
    "secret \"wandb-key\" of namespace 'a b', identified by its name, token 'end of file' is odd",
    "ranks ['0', '1', '2'], choices ('-u', '-p', '-w'), use ['curl', '-u'] here",
    "SigIgn: 0000000000001000 sig=0 sig=11 signature: (Tensor, Tensor) -> Tensor",
]  # fmt: skip


@pytest.mark.parametrize("line", NEAR)
def test_what_only_looks_like_one_stays(line: str) -> None:
    assert scrub_text(line) == line


def test_recorded_logs_of_trainers_stay_as_they_are() -> None:
    logs = sorted(CORPUS.rglob("*.log"))
    assert len(logs) > 3
    for path in logs:
        data = path.read_bytes()
        assert Scrubber().scrub(data) == data, path


KEY = b"""before
-----BEGIN RSA PRIVATE KEY-----
MIIEpAIBAAKCAQEA1234567890abcdef
[rank1]: iteration 5 is done
[rank0]:MIIEpAIBAAKCAQEA1234567890abcdef
MIIEpAIBAAKCAQEA1234567890abcdef
-----END RSA PRIVATE KEY-----
after MIIEpAIBAAKCAQEA1234567890abcdef
"""


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_private_key_goes_whole_also_over_chunks(size: int) -> None:
    scrubber = Scrubber()
    lines = KEY.splitlines(keepends=True)
    chunks = [b"".join(lines[at : at + size]) for at in range(0, len(lines), size)]
    clean = b"".join(map(scrubber.scrub, chunks)).splitlines()
    assert clean[0] == b"before"
    assert clean[3] == b"[rank1]: iteration 5 is done"
    assert not any(b"MIIE" in each for each in clean[:7])
    assert clean[7] == b"after MIIEpAIBAAKCAQEA1234567890abcdef"


def test_a_private_key_in_one_line_of_json_goes_too() -> None:
    key = "-----BEGIN PRIVATE KEY-----\\nMIIE\\n-----END PRIVATE KEY-----"
    line = f'{{"private_key": "{key}\\n", "a": 1}}'
    assert scrub_text(line) == '{"private_key": "[scrubbed private-key]\\n", "a": 1}'


def test_a_key_without_an_end_does_not_hide_the_rest_for_ever() -> None:
    scrubber = Scrubber()
    scrubber.scrub(b"-----BEGIN PRIVATE KEY-----\n")
    for _ in range(300):
        scrubber.scrub(b"x\n")
    line = b"after MIIEpAIBAAKCAQEA1234567890abcdef\n"
    assert scrubber.scrub(line) == line


def test_two_secrets_in_one_line_both_go_and_the_rest_stays() -> None:
    line = f"a=hf_{WORD36} b=2 password=hunter22 c"
    assert scrub_text(line) == "a=[scrubbed hugging-face] b=2 password=[scrubbed password] c"


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="is not a pattern"):
        compiled("(")


@given(st.binary(max_size=2000))
def test_any_bytes_pass(data: bytes) -> None:
    clean = Scrubber().scrub(data)
    assert clean.count(b"\n") == data.count(b"\n")


@given(st.text(alphabet="token=:. secretpasswordkey@/\"'0123456789abcXYZ-_", max_size=400))
def test_the_patterns_are_quick_on_nasty_lines(text: str) -> None:
    scrub_text(text)


def test_no_pattern_backtracks_over_a_long_line() -> None:
    for piece in ("token_", "a-", "://", "passw", "key ", "eyJa", "secret=", "-----BEGIN ", "sig="):
        scrub_text(piece * (60_000 // len(piece)))


def test_the_patterns_of_the_variable_hold_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MWATCH_SCRUB", "corp-[0-9]+\n\n(broken\n id=(?P<secret>[a-z]+) ")
    assert scrub_text("corp-77 id=abc x") == "[scrubbed] id=[scrubbed] x"
    assert scrub_text("corp-77 x9", ["x9"]) == "[scrubbed] [scrubbed]"
    monkeypatch.delenv("MWATCH_SCRUB")
    assert scrub_text("corp-77") == "corp-77"
