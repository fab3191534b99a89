#!/bin/sh -e
# `snakemake --sdm conda` runs this in the environment of verl.yaml, after it is made; 30 to 60 minutes.
FLASH_ATTENTION_FORCE_BUILD=TRUE python -m pip install --no-build-isolation --no-deps flash-attn==2.8.3
