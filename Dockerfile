# One image for the head, the workers and jobs. With CUDA, or for CPUs alone (a tenth of the size):
#   docker build -t REGISTRY/raysts .
#   docker build -t REGISTRY/raysts:cpu --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu .
FROM python:3.11-slim
ARG TORCH_INDEX=https://pypi.org/simple
# KubeRay asks pods with wget how they are; git is for a clone that is mounted; g++ makes training on CPUs faster.
RUN apt-get update && apt-get install -y --no-install-recommends wget git g++ && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 ray
USER ray
WORKDIR /home/ray/raysts
ENV PATH=/home/ray/env/bin:$PATH RAY_USAGE_STATS_ENABLED=0
# Before the sources: this layer, of gigabytes, is made again when a version changes and not when a line does.
COPY --chown=ray requirements.lock ./
RUN python -m venv /home/ray/env && pip install --no-cache-dir --extra-index-url $TORCH_INDEX -r requirements.lock
COPY --chown=ray pyproject.toml README.md LICENSE ./
COPY --chown=ray raysts raysts
COPY --chown=ray jobs jobs
RUN pip install --no-cache-dir --no-deps -e .
CMD ["raysts", "--help"]
