# fedwinnow with serve and join, from this checkout: docker build --tag fedwinnow .
# tests/deployment/test_dockerfile.py carries out these steps without Docker, in a clean virtual environment.
FROM python:3.11-slim

# Everything but torch, from wheels alone, each with the hash that the package index lists for it. The list is whole, and
# pip would look for newer versions where a package wants another one with an extra; `pip check` below finds what lacks.
WORKDIR /checkout
COPY requirements-deploy.txt ./
RUN python -m pip install --no-cache-dir --no-deps --require-hashes --only-binary=:all: --requirement requirements-deploy.txt

# torch has one build per kind of processor, with other hashes on other indexes, so it has a pinned version only. By
# default this is the build of the usual index, which is large because it has CUDA. For processors alone:
# docker build --build-arg TORCH_FLAGS="--index-url ADDRESS" with the address that torch's own page of installation names.
ARG TORCH_FLAGS=""
RUN python -m pip install --no-cache-dir $TORCH_FLAGS torch==2.13.0

COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN python -m pip install --no-cache-dir --no-deps --no-build-isolation . && python -m pip check

# A user without rights, also where another one is given (docker run --user): nothing is written outside of the folders
# that are mounted, and /tmp.
RUN useradd --no-create-home --uid 10001 fedwinnow && install --directory --owner 10001 --group 10001 /federation
ENV HOME=/tmp FEDWINNOW_OFFLINE=1
USER 10001:10001
WORKDIR /federation
ENTRYPOINT ["fedwinnow"]
CMD ["--help"]
