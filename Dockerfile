# One image for every process of the product; what a container is, its command decides (see
# docker-compose.yml, whose commands are the Procfile's).
#
# PyTorch's default build brings CUDA. For an image without it, name an index with CPU wheels:
#   docker build --build-arg PIP_EXTRA_INDEX_URL=… .

FROM python:3.11-slim-bookworm AS build
ARG PIP_EXTRA_INDEX_URL=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /venv
COPY requirements.lock .
# torch alone first, exactly pinned, so that nothing else can ask for another one.
RUN /venv/bin/pip install "$(grep -o '^torch==[0-9.]*' requirements.lock)" \
 && /venv/bin/pip install -r requirements.lock

FROM python:3.11-slim-bookworm
# Triton builds a small launcher with the C compiler when it first meets a GPU.
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --uid 10001 --home-dir /nonexistent --shell /usr/sbin/nologin lab \
 && install -d -o lab -g lab /data
COPY --from=build /venv /venv
ENV PATH=/venv/bin:$PATH \
    PYTHONPATH=/app:/app/site \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp \
    TRITON_CACHE_DIR=/tmp/triton \
    DJANGO_SETTINGS_MODULE=config.settings \
    ATTENTION_LAB_DATA_DIR=/data \
    ATTENTION_LAB_HOST=0.0.0.0 \
    PORT=8000
WORKDIR /app
COPY . .
# Which commit this is, for the provenance of runs: docker build --build-arg COMMIT=$(git rev-parse HEAD) .
ARG COMMIT=""
ENV ATTENTION_LAB_COMMIT=$COMMIT
# The key is for this one command only; the running containers read theirs from a secret.
RUN ATTENTION_LAB_SECRET_KEY=unused ATTENTION_LAB_DATA_DIR=/tmp/build python -m config.static
USER 10001:10001
VOLUME /data
EXPOSE 8000
CMD ["sh", "-c", "exec gunicorn --config python:config.gunicorn config.wsgi"]
