#!/bin/sh
# Every test, in three parts, each with pytest's own summary. Goes on after a failure and fails at the end,
# so that one look shows all there is to mend. Usage: suite.sh PYTHON
set -u
python=$1
failed=

part() {
    title=$1
    shift
    echo "==> $title" >&2
    "$python" -m pytest "$@" || failed="$failed
    $title"
}

part "What computes, on all cores" -n logical -m "not slow"
part "What starts processes and looks at the clock, two files at a time" -n 2 --dist loadfile -m slow
part "Rows, their queue and their pages once more, on PostgreSQL" --database postgres -n logical \
    tests/workers tests/api tests/site/classroom tests/site/search

[ -z "$failed" ] || { echo "Failed:$failed" >&2; exit 1; }
