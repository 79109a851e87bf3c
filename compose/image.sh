#!/bin/sh
# Build the container image with the first of docker, podman and buildah that works: image.sh [BASE, an image of Debian 13]
set -eu
cd "$(dirname "$0")/.."
name="equipoise:$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)"
set -- ${1:+--build-arg "BASE=$1"} --file compose/Dockerfile --tag "$name" .
if docker info >/dev/null 2>&1; then
  docker build "$@"
elif podman info >/dev/null 2>&1; then
  podman build --ignorefile compose/Dockerfile.dockerignore "$@"
elif command -v buildah >/dev/null; then
  # Its chroot needs nothing of the kernel that a container itself may lack.
  buildah build --isolation chroot --ignorefile compose/Dockerfile.dockerignore "$@"
else
  echo "an image needs docker, podman or buildah; on Debian: apt-get install buildah" >&2
  exit 1
fi
echo "$name"
