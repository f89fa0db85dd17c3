#!/usr/bin/env bash
# Off-screen rendering needs an OpenGL driver that works without a display. Installs it with apt when root;
# otherwise names the packages. Training on the embedded simulator from object states needs none.
set -eu
if ldconfig -p 2>/dev/null | grep -q 'libEGL\.so\.1' || [ "$(uname -s)" != Linux ]; then exit 0; fi
packages="libegl1 libgl1 libgl1-mesa-dri"
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing OpenGL packages for off-screen rendering: $packages"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y $packages >/dev/null
else
    echo "note: rendering needs system packages that are missing here: $packages" >&2
    echo "      install them with: sudo apt-get install $packages" >&2
fi
