#!/bin/sh
# Sees to the programs that the tests need beside Python: installs them on Debian as root, else says
# what to install and fails. Usage: system.sh [chromium] [curl] [postgresql] [redis-server]
set -eu

has() {
    case $1 in
    chromium) command -v chromium || command -v chromium-browser || command -v google-chrome ;;
    curl) command -v curl ;;
    redis-server) command -v redis-server ;;
    postgresql) command -v initdb || ls /usr/lib/postgresql/*/bin/initdb ;;
    esac >/dev/null 2>&1
}

missing=
for program in "$@"; do
    has "$program" || missing="$missing $program"
done
[ -n "$missing" ] || exit 0

if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    echo "==> Installing for the tests:$missing" >&2
    apt-get update -qq >&2
    # shellcheck disable=SC2086  # one word a package
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $missing >&2
    for program in $missing; do
        has "$program" || { echo "apt-get installed $program, and it is still not found" >&2; exit 1; }
    done
    exit 0
fi

echo "The tests need these programs, and they were not found:$missing" >&2
echo "Debian and Ubuntu: sudo apt-get install$missing" >&2
echo "Elsewhere, your system's packages of the same names; initdb must be on the PATH." >&2
exit 1
