# mucudnn with PyTorch for the CPU. From the top folder:
#
#   docker build -f docker/cpu.Dockerfile -t mucudnn . && docker run --rm -it mucudnn
#
# With --build-arg PIP_EXTRA_INDEX_URL=URL of PyTorch's builds for the CPU, the image is gigabytes smaller.
FROM python:3.13-slim-bookworm AS build
# hadolint ignore=DL3008  # the compiler of the distribution's release
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
COPY . /source
RUN pip wheel --no-cache-dir --no-deps -w /wheels /source

FROM python:3.13-slim-bookworm
ARG PIP_EXTRA_INDEX_URL
COPY --from=build /wheels /wheels
# hadolint ignore=DL3008  # torch.compile needs a compiler, too
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/* \
    && pip install --no-cache-dir "$(echo /wheels/*.whl)[torch,report]" \
    && rm -r /wheels \
    && useradd --create-home --uid 1000 mucudnn
USER 1000:1000
WORKDIR /home/mucudnn
# malloc keeps freed memory, as docs/reference/torch.md advises.
ENV MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=1000000000000
ENTRYPOINT ["mucudnn"]
CMD ["demo"]
