# verl on GPUs as a container, with the pins of verl.yaml, for nodes without compilers or conda:
#
#   docker build --file workflow/envs/verl.dockerfile --tag rlvr-verl .
#   apptainer build workflow/envs/verl.sif docker-daemon://rlvr-verl:latest     # for `snakemake --sdm apptainer`
#
# The driver is the node's: 580.65.06 or newer for CUDA 13.0. Never built whole by the project, which has
# neither GPU nor Docker; docs/paper_scale.md says which lines were carried out.
FROM nvidia/cuda:13.0.3-devel-ubuntu24.04

ENV DEBIAN_FRONTEND=noninteractive PIP_NO_CACHE_DIR=1 VIRTUAL_ENV=/opt/rlvr-verl
RUN apt-get update && apt-get install --yes --no-install-recommends git ninja-build python3-pip python3-yaml \
    && rm -rf /var/lib/apt/lists/* \
    && pip install --break-system-packages uv && uv venv --python 3.11 $VIRTUAL_ENV
ENV PATH=$VIRTUAL_ENV/bin:$PATH

COPY workflow/envs/verl.yaml /tmp/verl.yaml
RUN /usr/bin/python3 -c "import yaml; print(*yaml.safe_load(open('/tmp/verl.yaml'))['dependencies'][-1]['pip'], sep='\n')" \
    > /tmp/pins.txt && uv pip install --requirement /tmp/pins.txt
# After torch, which it is built against; 30 to 60 minutes.
RUN uv pip install setuptools wheel packaging psutil \
    && MAX_JOBS=8 FLASH_ATTENTION_FORCE_BUILD=TRUE uv pip install --no-build-isolation --no-deps flash-attn==2.8.3
# Compiled kernels and models of transformers stay outside of the image.
WORKDIR /work
