#!/bin/bash
# How long a Tab takes in bash, without the terminal: PATH=$PWD/.venv/bin:$PATH bench/completion.sh
set -eu
eval "$(aliquot completion bash)"

tab() {
    local before after
    COMP_LINE="$1" COMP_POINT=${#1}
    before=$EPOCHREALTIME
    _aliquot
    after=$EPOCHREALTIME
    echo $((${after/./} - ${before/./}))
}

for line in "aliquot r" "aliquot run --pri" "aliquot kill " "aliquot describe "; do
    for _ in {1..20}; do tab "$line"; done | sort -n | awk -v line="$line" '{ us[NR] = $1 }
        END { printf "%-18s %6.1f ms median, %.1f to %.1f\n", line, us[int((NR + 1) / 2)] / 1000,
              us[1] / 1000, us[NR] / 1000 }'
done
