# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
# mwatch: sidecar, controller and commands, and the wrapper that is copied into training pods.
# charts/dataset needs the extra `data` to make datasets (python -m mwatch_gpt.data).
#   docker build -t mwatch:0.1.0 -f manifests/docker/mwatch.Dockerfile .      (from the repository)
# Any base with Python 3.11 to 3.13, its module venv and libstdc++ will do (--build-arg PYTHON=...).
ARG PYTHON=python:3.12-slim
FROM ${PYTHON} AS build
# Another package index, or a folder of wheels in the place of one.
ARG PIP_INDEX_URL
ARG PIP_NO_INDEX
ARG PIP_FIND_LINKS
COPY pyproject.toml setup.py README.md LICENSE /source/
COPY alerts /source/alerts
COPY dashboards /source/dashboards
COPY manifests/charts /source/manifests/charts
COPY manifests/rbac /source/manifests/rbac
COPY manifests/docker/requirements.lock manifests/docker/build.lock /source/manifests/docker/
COPY runbooks /source/runbooks
COPY sidecar /source/sidecar
COPY trainer /source/trainer
# One layer. Every package is one that a lock file names with its hash, and /opt/mwatch has no pip.
# The bytecode is not compared with times of files, which differ from build to build. The import
# finds a base that lacks a library.
RUN set -eu; cd /source; \
    python3 -m venv /build; \
    /build/bin/pip install --no-cache-dir --require-hashes -r manifests/docker/build.lock; \
    /build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheel .; \
    python3 -m venv --without-pip /opt/mwatch; \
    into="/build/bin/pip --python /opt/mwatch/bin/python install --no-cache-dir --no-compile"; \
    $into --require-hashes -r manifests/docker/requirements.lock; \
    $into --no-index --no-deps /wheel/mwatch-*.whl; \
    /opt/mwatch/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/mwatch/lib; \
    /opt/mwatch/bin/python -c 'import mwatch.controller.controller, mwatch.sidecar.sidecar'; \
    /opt/mwatch/bin/python -m mwatch_trainer.zipapp_build /mwatch-run.pyz

FROM ${PYTHON}
COPY --from=build /opt/mwatch /opt/mwatch
COPY --from=build /mwatch-run.pyz /mwatch-run.pyz
ENV PATH=/opt/mwatch/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# In a training pod it runs as the user of the trainer, if the pod names one.
USER 65532:65532
EXPOSE 9401 9402
ENTRYPOINT ["mwatch"]
CMD ["--help"]
