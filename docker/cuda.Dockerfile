# mucudnn with PyTorch for CUDA, whose packages bring cuDNN. From the top folder:
#
#   docker build -f docker/cuda.Dockerfile -t mucudnn-cuda .
#   docker run --rm --gpus all -v "$PWD:/program" mucudnn-cuda run --workspace 64MiB -- python /program/train.py
#
# The host needs NVIDIA's driver and its container toolkit. `docker run --rm --gpus all mucudnn-cuda doctor torch`
# says whether everything is there.
FROM python:3.13-slim-bookworm AS build
# hadolint ignore=DL3008  # the compiler of the distribution's release
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
COPY . /source
RUN pip wheel --no-cache-dir --no-deps -w /wheels /source

FROM python:3.13-slim-bookworm
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir "$(echo /wheels/*.whl)[torch,report]" \
    && rm -r /wheels \
    && useradd --create-home --uid 1000 mucudnn
USER 1000:1000
WORKDIR /home/mucudnn
# The container toolkit makes the driver visible.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
ENTRYPOINT ["mucudnn"]
CMD ["doctor", "torch"]
