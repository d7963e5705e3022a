# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
# A training image: NVIDIA's PyTorch with Transformer Engine, one release of Megatron-LM, and mwatch
# for runs without Kubernetes. On AWS, set EFA_INSTALLER to a version (1.43.2) for the network; on
# Azure, set TOPOLOGY to the URL of the topology file of the machine, which values-aks.yaml uses.
#   docker build -t megatron-lm:core_v0.16.1 -f manifests/docker/megatron.Dockerfile .
ARG BASE=nvcr.io/nvidia/pytorch:25.06-py3
FROM ${BASE}
ARG MEGATRON=core_v0.16.1
ARG EFA_INSTALLER=
ARG TOPOLOGY=
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]

# The node provides the kernel module; only the libraries and NCCL's plugin are installed.
RUN if [ -n "${EFA_INSTALLER}" ]; then \
        cd /tmp; \
        curl --fail --silent --show-error --location --retry 5 \
            "https://efa-installer.amazonaws.com/aws-efa-installer-${EFA_INSTALLER}.tar.gz" | tar xz; \
        apt-get update; \
        (cd aws-efa-installer && ./efa_installer.sh -y -g --skip-kmod --skip-limit-conf --no-verify); \
        rm -rf aws-efa-installer /var/lib/apt/lists/*; \
    fi

RUN if [ -n "${TOPOLOGY}" ]; then \
        curl --fail --silent --show-error --location --retry 5 --output /etc/ndv5-topo.xml "${TOPOLOGY}"; \
    fi

# Megatron's converter of base models requires transformers 4.x.
RUN git clone --depth 1 --branch "${MEGATRON}" \
        https://github.com/NVIDIA/Megatron-LM /workspace/Megatron-LM \
    && make -C /workspace/Megatron-LM/megatron/core/datasets \
    && pip install --no-cache-dir \
        nltk regex sentencepiece tensorboard tiktoken "transformers>=4.53,<5" zstandard
ENV PYTHONPATH=/workspace/Megatron-LM CUDA_DEVICE_MAX_CONNECTIONS=1

# Separate from the packages of the trainer, so that neither can break the other. The base image pins
# package versions for pip, and may lack the Python module that installs pip into a new environment.
COPY pyproject.toml setup.py README.md LICENSE /source/
COPY alerts /source/alerts
COPY dashboards /source/dashboards
COPY manifests/charts /source/manifests/charts
COPY manifests/rbac /source/manifests/rbac
COPY runbooks /source/runbooks
COPY sidecar /source/sidecar
COPY trainer /source/trainer
RUN python3 -m venv --without-pip /opt/mwatch \
    && PIP_CONSTRAINT= python3 -m pip --python /opt/mwatch/bin/python install --no-cache-dir \
        '/source[data]' \
    && ln -s /opt/mwatch/bin/mwatch /usr/local/bin/mwatch
WORKDIR /workspace/Megatron-LM
