#!/bin/sh
# Test tools that pip does not carry. Without qemu the aarch64 build of the kernel is compiled but not run.
if command -v qemu-aarch64-static >/dev/null 2>&1 || command -v qemu-aarch64 >/dev/null 2>&1; then
  exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq qemu-user-static; } >/dev/null 2>&1 && exit 0
fi
echo "qemu-user-static is not installed: the aarch64 kernel is built but not run by the tests."
echo "On Debian or Ubuntu: sudo apt-get install qemu-user-static"
exit 0
