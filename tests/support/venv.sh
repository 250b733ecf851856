#!/bin/sh
# Makes a virtual environment with the first suitable Python: $PYTHON, else python3 when it is 3.11 to
# 3.13, else the newest of those that runs. Usage: venv.sh FOLDER
set -eu

suitable='import sys, ensurepip, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'
numbered='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'

find_python() {
    for name in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        # Run it: a version manager's shim may exist and still refuse.
        if "$name" -c "$1" >/dev/null 2>&1; then
            command -v "$name"
            return
        fi
    done
    return 1
}

if ! python=$(find_python "$suitable"); then
    if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
        echo "==> Installing Debian's python3 with venv" >&2
        apt-get update -qq >&2
        DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends python3 python3-venv >&2
    fi
    if ! python=$(find_python "$suitable"); then
        if find_python "$numbered" >/dev/null; then
            echo "Python is there but cannot make virtual environments; install its venv package" >&2
            echo "(Debian and Ubuntu: apt-get install python3-venv) and try again." >&2
        else
            echo "Python 3.11, 3.12 or 3.13 is needed and none was found. Install one, or name one:" >&2
            echo "    make PYTHON=/path/to/python3.12 ..." >&2
        fi
        exit 1
    fi
fi

echo "==> Making $1 with $("$python" --version) ($python)" >&2
"$python" -m venv "$1"
