# What else a market to try needs: a development chain, a beacon, the faucet, and the client's command line.
#
#   docker build -f docker/devnet.Dockerfile -t quorate-devnet .
#
# BASE is any image with Python 3.11 to 3.13 and its venv module. Wheels in docker/wheels are taken first; with
# PIP_OPTIONS=--no-index nothing else is, so the build needs no network (.ci/make-images).
ARG BASE=python:3.12-slim

FROM ${BASE} AS build
ARG PIP_OPTIONS=""
COPY pyproject.toml constraints.txt /src/
COPY docker /src/docker
RUN python3 -m venv /opt/quorate && python3 /src/docker/requirements.py /src/pyproject.toml devnet >/tmp/requirements.txt \
    && /opt/quorate/bin/pip install --quiet --no-cache-dir --disable-pip-version-check --find-links /src/docker/wheels ${PIP_OPTIONS} \
        --constraint /src/constraints.txt --requirement /tmp/requirements.txt
COPY . /src
RUN /opt/quorate/bin/pip install --quiet --no-cache-dir --disable-pip-version-check --find-links /src/docker/wheels ${PIP_OPTIONS} \
        --no-deps /src

FROM ${BASE}
RUN echo "quorate:x:10001:10001:Quorate:/var/lib/quorate:/usr/sbin/nologin" >> /etc/passwd && echo "quorate:x:10001:" >> /etc/group \
    && mkdir -p -m 0700 /market/secrets /market/facts /market/coordinator /market/provider-a /market/provider-b /market/provider-c /market/client \
        /var/lib/quorate && chown -R 10001:10001 /market /var/lib/quorate
COPY --from=build /opt/quorate /opt/quorate
COPY docker/market/ /opt/quorate/market/
ENV PATH=/opt/quorate/bin:/usr/local/bin:/usr/bin:/bin QUORATE_HOME=/var/lib/quorate PYTHONUNBUFFERED=1
USER 10001:10001
STOPSIGNAL SIGTERM
ENTRYPOINT ["quorate"]
CMD ["--help"]
