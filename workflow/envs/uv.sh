#!/bin/sh
# uv of the environment .venv or the like, told what pip is told of indexes, certificates and proxy; uv reads no settings
# of pip. Variables of uv's own, where the user set them, hold.
#     sh workflow/envs/uv.sh FOLDER pip install ...
set -eu
folder=$1
shift
set -a # what is set from here on is exported
VIRTUAL_ENV=$PWD/$folder
eval "$("$folder/bin/python" -m pip config list | sort | sed -nE -e 's/\\n/ /g' \
    -e "s/^(:env:|global|install)\.index-url='(.*)'/: \"\${UV_DEFAULT_INDEX:=\2}\"/p" \
    -e "s/^(:env:|global|install)\.extra-index-url='(.*)'/: \"\${UV_INDEX:=\2}\"/p" \
    -e "s/^(:env:|global|install)\.find-links='(.*)'/: \"\${UV_FIND_LINKS:=\2}\"/p" \
    -e "s/^(:env:|global|install)\.trusted-host='(.*)'/: \"\${UV_INSECURE_HOST:=\2}\"/p" \
    -e "s/^(:env:|global|install)\.cert='(.*)'/: \"\${SSL_CERT_FILE:=\2}\"/p" \
    -e "s/^(:env:|global|install)\.proxy='(.*)'/: \"\${ALL_PROXY:=\2}\"/p" \
    -e "s/^(:env:|global|install)\.cache-dir='(.*)'/: \"\${UV_CACHE_DIR:=\2}\"/p")"
: "${UV_INDEX_STRATEGY:=unsafe-best-match}" # like pip, the pinned version from whichever index has it
# Where the home directory cannot be written, packages are kept here.
mkdir -p "${XDG_CACHE_HOME:-$HOME/.cache}/uv" 2> /dev/null || : "${UV_CACHE_DIR:=$PWD/.cache/uv}"
exec "$folder/bin/uv" "$@"
