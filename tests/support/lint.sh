#!/bin/sh
# Everything that can be said of the code without running it. Says each step, goes on after a failure
# and fails at the end, so that one look shows all there is to mend. Usage: lint.sh BIN
set -u
bin=$1
failed=

step() {
    title=$1
    shift
    echo "==> $title" >&2
    "$@" || failed="$failed
    $title"
}

openapi() {
    schema=$(mktemp --suffix .yaml)
    "$bin/python" manage.py spectacular --validate --fail-on-warn --file "$schema" &&
        "$bin/openapi-spec-validator" "$schema"
    status=$?
    rm -f "$schema"
    return $status
}

ATTENTION_LAB_DATA_DIR=$(mktemp -d)
export ATTENTION_LAB_DATA_DIR
trap 'rm -rf "$ATTENTION_LAB_DATA_DIR"' EXIT

step "Style (ruff check)" "$bin/ruff" check .
step "Format (ruff format)" "$bin/ruff" format --check .
step "Types (mypy)" "$bin/mypy"
step "Import floors (lint-imports)" "$bin/lint-imports"
step "Templates (djlint)" "$bin/djlint" --quiet --lint templates api/templates
step "Spelling (codespell)" "$bin/codespell" ./*.md docs site api workers kernels templates static
step "Settings (manage.py check)" "$bin/python" manage.py check --fail-level WARNING
step "Migrations (makemigrations --check)" "$bin/python" manage.py makemigrations --check --dry-run
step "OpenAPI document" openapi
step "Locks against pyproject.toml" "$bin/python" -m tests.support.lock check

[ -z "$failed" ] || { echo "Failed:$failed" >&2; exit 1; }
