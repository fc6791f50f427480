#!/bin/sh
# Test tools that pip does not carry: a browser, a Vulkan device in software, and qemu for the aarch64 kernel.
# Without a browser the browser tests fail and name it; without qemu the aarch64 kernel is built but not run.
missing=
command -v chromium >/dev/null 2>&1 || command -v google-chrome >/dev/null 2>&1 || missing="$missing chromium"
ls /usr/share/vulkan/icd.d/*.json >/dev/null 2>&1 || missing="$missing mesa-vulkan-drivers"
ldconfig -p 2>/dev/null | grep -q libvulkan.so.1 || missing="$missing libvulkan1"
command -v qemu-aarch64-static >/dev/null 2>&1 || command -v qemu-aarch64 >/dev/null 2>&1 || missing="$missing qemu-user-static"
[ -z "$missing" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  # shellcheck disable=SC2086 # several names
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing; } >/dev/null 2>&1 && exit 0
fi
echo "Not installed, and needed by some tests:$missing"
echo "On Debian or Ubuntu: sudo apt-get install$missing"
exit 0
