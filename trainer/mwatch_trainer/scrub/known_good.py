# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Scrubs a training command's environment and arguments with allow-lists.

A deny-list can never be complete, so the value of a variable or flag is kept only if its name is
known to be harmless; other values are replaced by their length, `[12 characters]`. Kept values also
go through the text scrubber, because even `PATH` may contain a URL with a password.

Variables kept: those of launchers, schedulers, CUDA, NCCL, fabrics, torch and the system, by name
or prefix; a name that suggests a secret (`TORCH_HUB_TOKEN`) is not kept, whatever its prefix.
Arguments kept: the program, scripts, modules and configuration files; all flags and switches
themselves; every number, boolean and `None`, unless the flag suggests a secret; other values of the
flags of Megatron, torchrun, Composer, LLM-Foundry, the Hugging Face trainer and DeepSpeed that are
in the table below. The same applies to `name=value` and hydra's `+a.b.name=value`, by the last part
of the name. The script of `bash -c` is parsed as arguments; code for `python -c` is not shown.
"""

from __future__ import annotations

import re
import shlex
from typing import Mapping, Sequence

from mwatch_trainer.scrub.names import HARMLESS, kind_of, words
from mwatch_trainer.scrub.scrubber import Scrubber

MAX_VARIABLES = 1024
MAX_VALUE_CHARS = 4096
_MAX_NAME_CHARS = 256

# Launchers and their rendezvous; schedulers; devices and their libraries; fabrics; numerics and
# threads; this package; the pod. None of these libraries reads a secret from such a variable.
_PREFIXES = (
    "CUDA_", "NCCL_", "TORCH_", "TORCHINDUCTOR_", "TORCHELASTIC_", "TORCHDYNAMO_", "PYTORCH_",
    "NVTE_", "NVIDIA_", "NV_", "CUDNN_", "CUBLAS_", "CUTLASS_", "TRITON_", "MASTER_", "PET_",
    "GLOO_", "UCX_", "UCC_", "FI_", "EFA_", "OFI_", "IB_", "OMPI_", "OMP_", "MKL_", "KMP_", "GOMP_",
    "PMI_", "PMIX_", "HYDRA_FULL_", "MEGATRON_", "DS_ACCELERATOR", "TOKENIZERS_", "NVSHMEM_",
    "NVLS_", "SHARP_", "MLX5_", "RDMAV_", "HSA_", "ROCR_", "HIP_", "RCCL_", "GPU_", "NUMEXPR_",
    "OPENBLAS_", "MALLOC_", "PYTHON", "XLA_", "DGX_", "KUBERNETES_SERVICE_", "KUBERNETES_PORT",
    "LC_", "JOB_COMPLETION_", "MWATCH_", "DALI_", "NSYS_", "CUDNN", "AWS_OFI_",
)  # fmt: skip
_SLURM = (
    "JOB_ID", "JOBID", "JOB_NAME", "JOB_NUM_NODES", "JOB_NODELIST", "JOB_PARTITION", "NNODES",
    "NODEID", "NODELIST", "NTASKS", "NTASKS_PER_NODE", "NPROCS", "PROCID", "LOCALID", "GPUS",
    "GPUS_ON_NODE", "GPUS_PER_NODE", "CPUS_ON_NODE", "CPUS_PER_TASK", "TASKS_PER_NODE", "STEP_ID",
    "STEP_NODELIST", "STEP_NUM_NODES", "STEP_NUM_TASKS", "RESTART_COUNT", "CLUSTER_NAME",
    "NODENAME", "TASK_PID", "SUBMIT_DIR", "LAUNCH_NODE_IPADDR", "ARRAY_JOB_ID", "ARRAY_TASK_ID",
    "MEM_PER_NODE",
)  # fmt: skip
_NAMES = frozenset((
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
    "ROLE_RANK", "ROLE_NAME", "ROLE_WORLD_SIZE", "NODE_RANK", "NNODES", "NPROC_PER_NODE", "RDZV_ID",
    "RDZV_BACKEND", "RDZV_ENDPOINT", "PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "LIBRARY_PATH",
    "HOME", "HOSTNAME", "USER", "LOGNAME", "SHELL", "SHLVL", "TERM", "TZ", "LANG", "LANGUAGE",
    "PWD",
    "OLDPWD", "TMPDIR", "TMP", "TEMP", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "_",
    "HF_HOME", "HF_HUB_OFFLINE", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_DATASETS_OFFLINE",
    "TRANSFORMERS_CACHE", "TRANSFORMERS_OFFLINE", "WANDB_MODE", "WANDB_DIR", "WANDB_PROJECT",
    "WANDB_DISABLED", "AWS_REGION", "AWS_DEFAULT_REGION", "NODE_NAME", "POD_NAME", "POD_NAMESPACE",
    "POD_IP", "HOST_IP", "POD_UID", "SSH_AUTH_SOCK", "COLUMNS", "LINES", "NO_COLOR", "DEBUG",
    "AWS_WEB_IDENTITY_TOKEN_FILE", "GOOGLE_APPLICATION_CREDENTIALS_PATH", "TOKENIZER_TYPE",
    "CUDA_HOME", "CPATH", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "TOKENIZER_MODEL", "DATA_PATH",
    "CHECKPOINT_PATH", "TENSORBOARD_DIR", "FLASH_ATTENTION", "SM_NUM_GPUS", "PYTEST_CURRENT_TEST",
    *(f"SLURM_{each}" for each in _SLURM),
))  # fmt: skip
_NOT_KEPT = ("MWATCH_SCRUB",)  # a pattern may contain the secret that it matches
_PLAIN_VALUE = re.compile(
    r"(?:|[-+]?[0-9]{1,18}(?:\.[0-9]{1,18})?(?:e[-+]?[0-9]{1,4})?|true|false|yes|no|on|off|none|null)",
    re.IGNORECASE,
)
_SWITCH_VALUE = re.compile(r"(?:|[01]|true|false|yes|no|none)", re.IGNORECASE)


def scrubbed_environment(environ: Mapping[str, str], scrubber: Scrubber) -> dict[str, str]:
    """Return the variables, sorted and limited; values not known to be harmless as their length."""
    found: dict[str, str] = {}
    for name in sorted(environ)[:MAX_VARIABLES]:
        shown = scrubber.text(name)[:_MAX_NAME_CHARS]
        found[shown] = variable(name, environ[name], scrubber)
    return found


def variable(name: str, value: str, scrubber: Scrubber) -> str:
    """Return the variable's value in the form that may be shown."""
    if _SWITCH_VALUE.fullmatch(value):
        return value
    if not is_known_variable(name):
        return _length(value)
    before = f"{name}="
    text = scrubber.text(before + value)  # with the name, because rules use it
    clean = text[len(before) :] if text.startswith(before) else scrubber.text(value)
    return clean[:MAX_VALUE_CHARS]


def is_known_variable(name: str) -> bool:
    if name in _NAMES:
        return True
    return name.startswith(_PREFIXES) and kind_of(name) is HARMLESS and name not in _NOT_KEPT


_LENGTH = re.compile(r"\[[0-9]+ characters\]")
_SHORT_LENGTH = re.compile(r"-\w\[[0-9]+ characters\]")


def _length(value: str) -> str:
    return f"[{len(value)} characters]"


_FLAGS = words(
    "save load pretrained_checkpoint ckpt_step ckpt_format dist_ckpt_format"
    " dist_ckpt_strictness non_persistent_save_interval non_persistent_ckpt_type"
    " non_persistent_global_ckpt_dir non_persistent_local_ckpt_dir data_path train_data_path"
    " valid_data_path test_data_path per_split_data_args_path data_args_path data_cache_path"
    " split vocab_file merge_file tokenizer_type tokenizer_model tiktoken_pattern"
    " tensorboard_dir tensorboard_log_dir wandb_project wandb_exp_name wandb_save_dir"
    " wandb_entity one_logger_project one_logger_run_name log_level lr_decay_style"
    " weight_decay_incr_style optimizer lr_warmup_init init_method position_embedding_type"
    " normalization activation_func transformer_impl attention_backend distributed_backend"
    " recompute_granularity recompute_method recompute_modules fp8_format fp8_recipe"
    " fp8_amax_compute_algo params_dtype main_params_dtype main_grads_dtype exp_avg_dtype"
    " exp_avg_sq_dtype grad_reduce_in_bf16 dataloader_type moe_router_load_balancing_type"
    " moe_token_dispatcher_type moe_router_score_function moe_router_dtype moe_layer_freq"
    " data_parallel_sharding_strategy cp_comm_type rampup_batch_size spec timing_log_level"
    " timing_log_option straggler_ctrlr_port profile_ranks memory_snapshot_path yaml_cfg"
    " config_file error_injection_type fim_rate hybrid_override_pattern"
    " nccl_communicator_config_path pipeline_model_parallel_layout context_parallel_algo"
    " rope_type rotary_base result_rejected_tracker_filename nnodes nproc_per_node nproc"
    " node_rank rdzv_backend rdzv_endpoint rdzv_conf master_addr master_port max_restarts"
    " monitor_interval start_method role local_ranks_filter log_dir redirects tee local_addr"
    " module standalone run_path rdzv_id local_rank hostfile include exclude num_nodes"
    " num_gpus launcher deepspeed deepspeed_config zero_stage model_name_or_path output_dir"
    " dataset_name dataset_config_name config_name tokenizer_name cache_dir"
    " resume_from_checkpoint lr_scheduler_type optim report_to logging_dir evaluation_strategy"
    " eval_strategy save_strategy logging_strategy torch_dtype fsdp fsdp_config"
    " attn_implementation run_name do_train do_eval bf16 fp16 half_precision_backend"
    " ddp_backend save_folder save_interval save_filename save_latest_filename load_path"
    " load_checkpoint autoresume max_duration eval_interval precision"
    " device_train_microbatch_size sharding_strategy mixed_precision state_dict_type"
    " data_local data_remote train_loader eval_loader dist_timeout python_log_level"
    " console_log_interval progress_bar log_to_console seed name model_name max_seq_len"
    " global_train_batch_size variant backend device mode workers_count log_interval"
    " train_iters train_samples exit_interval exit_duration_in_mins exit_signal checkpoint_dir"
    " checkpoint_path checkpoints data_dir dataset_dir config_path config_dir strategy"
    " accelerator devices dtype dir act no_probe grace"
)
_DATA_FLAGS = ("data_path", "rampup_batch_size", "profile_ranks", "recompute_modules", "include")
_SCRIPT = re.compile(r"[\w./@%+~-]*\.(?:py|pyz|sh|bash|ya?ml|json|toml|cfg|ini|txt|sif|sqsh)")
_PROGRAM = re.compile(
    r"(?:[\w./+~-]*/)?(?:python[0-9.]*|torchrun|bash|sh|dash|zsh|env|srun|mpirun|mpiexec|deepspeed"
    r"|accelerate|composer|llmfoundry|numactl|taskset|nice|nohup|stdbuf|time|timeout|exec|train"
    r"|launch|run|apptainer|singularity|enroot|nsys|ncu|profile|unbuffer|ulimit|sudo|mwatch-run"
    r"|mwatch|sleep|true|false|cat|dd|yes|echo|printf|exit|tail)"
)
_SHELL = re.compile(r"(?:[\w./+~-]*/)?(?:ba|da|z|k)?sh")
_SHELL_FLAGS = ("-c", "-lc", "-ec", "-ic", "-xc", "-exc", "-euxc")
_PUNCTUATION = re.compile(r"[&|;<>(){}!\[\]]+|\$\{?\w+\}?|cd|export|set|then|fi|do|done|if|for|in")
_MODULE = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")
_HYDRA = re.compile(r"(?P<name>(?:\+{1,2}|~)?[A-Za-z_][\w.@/-]*)=(?P<value>.*)", re.DOTALL)
_PART = re.compile(r"[./@]")
_LOGIN = re.compile(r"(?:^|[\s,=/])(?!/)[^\s:/@,=]{1,64}:[^\s:/@,]{2,128}@(?!sha256:)[\w.-]")


def scrubbed(argv: Sequence[str], scrubber: Scrubber) -> list[str]:
    """Return a command line without values that are not known to be harmless."""
    clean: list[str] = []
    flag, is_first_value, has_script = "", False, False
    for at, word in enumerate(argv):
        shown, is_flag = _flag(word, scrubber)
        if is_flag:
            flag, is_first_value = word, "=" not in word
        else:
            is_kept = _is_known_value(flag, word, is_first_value)
            if not is_first_value or not flag or flag == "-m":
                is_program = at == 0 or (not has_script and _PROGRAM.fullmatch(word) is not None)
                is_kept = is_kept or is_program or _is_script(flag, word)
                has_script = has_script or _is_script(flag, word)
            if flag in _SHELL_FLAGS and is_first_value and _SHELL.fullmatch(argv[at - 2]):
                shown = _script(word, scrubber)
            else:
                shown = _kept(flag, word, scrubber) if is_kept else _setting(word, scrubber)
            is_first_value = False
        clean.append(shown.encode("utf-8", "replace").decode("utf-8"))
    return clean


def _script(text: str, scrubber: Scrubber) -> str:
    """Scrub a shell script's commands as arguments."""
    try:
        words = shlex.split(text)
    except ValueError:
        return _length(text)
    shown = scrubbed(words, scrubber) if _SHELL_FLAGS[0] not in words else [_length(text)]
    pairs = zip(words, shown)
    return " ".join(word if _PUNCTUATION.fullmatch(word) else each for word, each in pairs)


def _is_script(flag: str, word: str) -> bool:
    is_module = flag in ("-m", "--module") and _MODULE.fullmatch(word) is not None
    return is_module or _SCRIPT.fullmatch(word) is not None


def _flag(word: str, scrubber: Scrubber) -> tuple[str, bool]:
    """Return the flag, with its value if known to be harmless, and whether the word is a flag."""
    if not word.startswith("-") or _PLAIN_VALUE.fullmatch(word):
        return "", False
    if _SHORT_LENGTH.fullmatch(word):
        return word, True
    name, equals, value = word.partition("=")
    if not re.fullmatch(r"--?[A-Za-z][\w.-]{0,80}|--", name):
        return _length(word), True
    if name[1] != "-" and len(name) > 2 and not equals and name[2:].isalnum():
        is_short = name[2:].isdigit() or (name.islower() and kind_of(name) is HARMLESS)
        return (name, True) if is_short and name[1] != "p" else (name[:2] + _length(name[2:]), True)
    if not equals:
        return name, True
    if _is_known_value(name, value, True):
        return f"{name}={_kept(name, value, scrubber)}", True
    return f"{name}={_setting(value, scrubber)}", True


def _last_part(name: str) -> str:
    return _PART.split(name.lstrip("-+~"))[-1].replace("-", "_")


def _is_known_value(flag: str, value: str, is_first: bool) -> bool:
    name = _last_part(flag)
    if flag and is_first and (kind_of(flag.lstrip("-")) is not HARMLESS or flag in ("-p", "-a")):
        return _SWITCH_VALUE.fullmatch(value) is not None
    if _PLAIN_VALUE.fullmatch(value):
        return True
    return name in _FLAGS and (is_first or name.endswith(_DATA_FLAGS))


def _kept(flag: str, value: str, scrubber: Scrubber) -> str:
    """Scrub a kept value, together with the flag before it."""
    if _LOGIN.search(value):  # also if it has no scheme
        return _length(value)
    text = scrubber.text(f"{flag} {value}") if flag.startswith("-") else ""
    if text.startswith(flag + " ") and text != f"{flag} {value}":
        return text[len(flag) + 1 :]
    return scrubber.text(value)


def _setting(word: str, scrubber: Scrubber) -> str:
    """Return `name=value` with the value only if it may be kept; any other word as its length."""
    found = _HYDRA.fullmatch(word)
    if found is None:
        return word if _LENGTH.fullmatch(word) else _length(word)
    name, value = found.group("name"), found.group("value")
    if _is_known_value("--" + name, value, True) or is_known_variable(name):
        return scrubber.text(word)
    is_length = _LENGTH.fullmatch(value) is not None
    return f"{scrubber.text(name)}={value if is_length else _length(value)}"
