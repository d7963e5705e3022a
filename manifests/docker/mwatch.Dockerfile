# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
# mwatch: sidecar, controller and commands, and the wrapper that is copied into training pods.
# charts/dataset needs the extra `data` to make datasets (python -m mwatch_gpt.data).
#   docker build -t mwatch:0.1.0 -f manifests/docker/mwatch.Dockerfile .      (from the repository)
ARG PYTHON=python:3.12-slim
FROM ${PYTHON} AS build
COPY pyproject.toml setup.py README.md LICENSE /source/
COPY alerts /source/alerts
COPY dashboards /source/dashboards
COPY manifests/charts /source/manifests/charts
COPY manifests/rbac /source/manifests/rbac
COPY runbooks /source/runbooks
COPY sidecar /source/sidecar
COPY trainer /source/trainer
RUN python -m venv /opt/mwatch \
    && /opt/mwatch/bin/pip install --no-cache-dir '/source[data,notify]' \
    && /opt/mwatch/bin/python -m mwatch_trainer.zipapp_build /mwatch-run.pyz

FROM ${PYTHON}
COPY --from=build /opt/mwatch /opt/mwatch
COPY --from=build /mwatch-run.pyz /mwatch-run.pyz
ENV PATH=/opt/mwatch/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# In a training pod it runs as the user of the trainer, to read its files.
USER 65532:65532
EXPOSE 9401 9402
ENTRYPOINT ["mwatch"]
CMD ["--help"]
