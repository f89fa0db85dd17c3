#!/usr/bin/env bash
# LIBERO's tests under LIBERO's own Python: LIBERO_PYTHON, or the one of `structrl sims install libero`, which is made
# if it is not there. Arguments go to pytest; -m "not heavy" runs two of the 130 tasks.
set -euo pipefail
bin=$1
shift
find='from structrl.sims.installed import own_python; print(own_python("libero"))'
if [ -z "${LIBERO_PYTHON:-}" ]; then
    LIBERO_PYTHON=$("$bin/python" -c "$find" 2>/dev/null) || {
        "$bin/structrl" sims install libero
        LIBERO_PYTHON=$("$bin/python" -c "$find")
    }
fi
"$LIBERO_PYTHON" -m pytest tests/sims/libero "$@"
# What the trainer's Python does with LIBERO; skipped in `make test` where LIBERO is not installed.
"$bin/python" -m pytest tests/imitation/test_libero_demos.py tests/sims/test_libero_import.py "$@"
