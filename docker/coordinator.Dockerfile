# The coordinator: `quorate coordinator up` as a user without rights.
#
#   docker build -f docker/coordinator.Dockerfile -t quorate-coordinator .
#
# BASE is any image with Python 3.11 to 3.13 and its venv module. The build takes wheels in
# docker/wheels first. With PIP_OPTIONS=--no-index it takes nothing else and needs no network
# (.ci/make-images).
ARG BASE=python:3.12-slim

FROM ${BASE} AS build
ARG PIP_OPTIONS=""
COPY pyproject.toml constraints.txt /src/
COPY docker /src/docker
RUN python3 -m venv /opt/quorate && python3 /src/docker/requirements.py /src/pyproject.toml coordinator >/tmp/requirements.txt \
    && /opt/quorate/bin/pip install --quiet --no-cache-dir --disable-pip-version-check --find-links /src/docker/wheels ${PIP_OPTIONS} \
        --constraint /src/constraints.txt --requirement /tmp/requirements.txt
COPY . /src
RUN /opt/quorate/bin/pip install --quiet --no-cache-dir --disable-pip-version-check --find-links /src/docker/wheels ${PIP_OPTIONS} \
        --no-deps /src

FROM ${BASE}
RUN echo "quorate:x:10001:10001:Quorate:/var/lib/quorate:/usr/sbin/nologin" >> /etc/passwd && echo "quorate:x:10001:" >> /etc/group \
    && mkdir -p -m 0700 /var/lib/quorate/coordinator && chown -R 10001:10001 /var/lib/quorate
COPY --from=build /opt/quorate /opt/quorate
ENV PATH=/opt/quorate/bin:/usr/local/bin:/usr/bin:/bin QUORATE_HOME=/var/lib/quorate PYTHONUNBUFFERED=1
USER 10001:10001
VOLUME /var/lib/quorate/coordinator
EXPOSE 7700
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s --retries=3 CMD ["python", "-m", "quorate_runtime.probe", "http://127.0.0.1:7700/v1/ready"]
ENTRYPOINT ["quorate", "coordinator"]
CMD ["up"]
