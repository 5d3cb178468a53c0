#!/usr/bin/env bash
# From nothing to a running, committed, forked machine; every step with its
# time, every claim checked. Run it with `make demo`, or on an installed sietch:
#
#   SIETCH=/usr/local/bin/sietch SIETCH_DATA_DIR=/tmp/demo examples/demo/demo.sh
#
# Exits non-zero on the first thing that is not as promised, and removes its
# sandboxes either way. Images, kernel and history stay in the data directory,
# so that a second run is quick.
set -euo pipefail

SIETCH=${SIETCH:-sietch}
case $SIETCH in
*/*) SIETCH=$(realpath "$SIETCH") ;;
esac
SIETCH_DATA_DIR=$(realpath -m "${SIETCH_DATA_DIR:-/var/lib/sietch}")
export SIETCH_DATA_DIR
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
	bold=$'\e[1m' dim=$'\e[2m' green=$'\e[32m' red=$'\e[31m' plain=$'\e[0m'
else
	bold='' dim='' green='' red='' plain=''
fi

# --- telling and checking ---------------------------------------------------

now() { date +%s%3N; }
begun=$(now)
made=() # sandboxes to remove

title() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
note() { printf '  %s%s%s\n' "$dim" "$*" "$plain"; }
right() { printf '  %s✓%s %s\n' "$green" "$plain" "$*"; }
die() {
	printf '  %s✗ %s%s\n' "$red" "$*" "$plain" >&2
	exit 1
}

took() {
	local ms=$1
	if [ "$ms" -lt 1000 ]; then
		printf '  %s%d ms%s\n' "$dim" "$ms" "$plain"
	else
		printf '  %s%d.%d s%s\n' "$dim" $((ms / 1000)) $((ms % 1000 / 100)) "$plain"
	fi
}

# step COMMAND… shows a sietch command, runs it with its output in view, and
# prints its time. The output's last line is in $last.
last=''
step() {
	local start out code=0
	printf '  $ sietch'
	local arg
	for arg in "$@"; do
		case $arg in
		*[!A-Za-z0-9_./:=~@{}%+,-]* | '') printf " '%s'" "$arg" ;;
		*) printf ' %s' "$arg" ;;
		esac
	done
	printf '\n'
	out=$(mktemp)
	start=$(now)
	"$SIETCH" "$@" </dev/null 2>&1 >"$out" | sed 's/^/    /' >&2 || code=$?
	local ms=$(($(now) - start))
	sed 's/^/    /' "$out"
	last=$(tail -n 1 "$out")
	rm -f "$out"
	[ "$code" -eq 0 ] || die "sietch $1 ended with exit code $code"
	took "$ms"
}

# inside NAME COMMAND… runs a command in a sandbox and prints its output alone.
inside() {
	local name=$1
	shift
	"$SIETCH" exec "$name" -- "$@" </dev/null
}

# counter NAME get|add N sets $value and $nonce.
counter() {
	local name=$1 answer
	shift
	answer=$(inside "$name" python3 /work/counter.py "$@") || die "the counter in $name does not answer"
	read -r value nonce <<<"$answer"
}

cleanup() {
	local code=$?
	trap - EXIT
	if [ ${#made[@]} -gt 0 ]; then
		"$SIETCH" rm -f "${made[@]}" >/dev/null 2>&1 || true
	fi
	exit "$code"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# An earlier demo that was killed may have left these.
run=demo
stale=$("$SIETCH" ps -aq 2>/dev/null | grep -xE "$run|plan-[1-4]" || true)
# shellcheck disable=SC2086 # one word a name
[ -z "$stale" ] || "$SIETCH" rm -f $stale >/dev/null
for b in "$run" plan-1 plan-2 plan-3 plan-4; do
	"$SIETCH" branch -d "$b" >/dev/null 2>&1 || true
done
"$SIETCH" tag -d prepared >/dev/null 2>&1 || true

# --- the demo -----------------------------------------------------------------

printf '%ssietch %s%s\n' "$bold" "$("$SIETCH" --version | awk '{print $NF}')" "$plain"
note "data directory: $SIETCH_DATA_DIR"

title "1. A base image, from the host's own package mirror"
if "$SIETCH" image inspect debian:bookworm >/dev/null 2>&1; then
	note "debian:bookworm is there from an earlier run"
else
	step image bootstrap debian:bookworm
fi

title "2. A machine, described by a Dockerfile"
note "the first time this installs python3, nodejs and git"
step build --progress quiet -t agent examples/agent
image=$last
step build --progress quiet -t agent examples/agent
[ "$last" = "$image" ] || die "the second build made another image: $last, not $image"
right "the second build found every step in the cache, and is the same image"

title "3. Boot it as a microVM"
made+=("$run")
step run --name "$run" agent
step exec "$run" -- python3 -c 'import platform; print("kernel", platform.release(), "python", platform.python_version())'

title "4. Start a program that keeps its state in memory alone"
step cp examples/demo/counter.py "$run:/work/counter.py"
inside "$run" sh -c 'setsid python3 /work/counter.py serve </dev/null >/dev/null 2>&1 & exec python3 /work/counter.py wait'
inside "$run" sh -c 'echo "no plan yet" > /work/plan'
counter "$run" get
note "counter: $value, process nonce $nonce"

title "5. Commit the running machine"
counter "$run" get
committed=$value committed_nonce=$nonce
step commit -m "prepared: counter running" "$run"
step tag prepared "$run"

title "6. Fork it, four ways at once"
made+=(plan-1 plan-2 plan-3 plan-4)
step fork -n 4 --name plan --branch prepared
for i in 1 2 3 4; do
	counter "plan-$i" get
	[ "$nonce" = "$committed_nonce" ] || die "plan-$i runs another process: nonce $nonce, not $committed_nonce"
	[ "$value" -ge "$committed" ] || die "plan-$i counts from $value, but $committed was committed"
	[ "$value" -lt 100000 ] || die "plan-$i is at $value: that is not its own memory"
	[ "$(inside "plan-$i" cat /work/plan)" = "no plan yet" ] || die "plan-$i does not see the committed file"
	right "plan-$i: the same process goes on counting: $committed at the commit, $value now"
done

title "7. Each goes its own way"
for i in 1 2 3 4; do
	counter "plan-$i" add $((i * 100000))
	inside "plan-$i" sh -c "echo 'plan $i' > /work/plan"
done
for i in 1 2 3 4; do
	counter "plan-$i" get
	if [ "$value" -lt $((i * 100000)) ] || [ "$value" -ge $((i * 100000 + 50000)) ]; then
		die "plan-$i is at $value, not a little over $((i * 100000))"
	fi
	plan=$(inside "plan-$i" cat /work/plan)
	[ "$plan" = "plan $i" ] || die "plan-$i reads '$plan' from its own disk"
	right "plan-$i: memory says $value, disk says '$plan'"
done
step commit -m "tried plan 2" plan-2
step commit -m "tried plan 3" plan-3

title "8. The source lives on, and goes wrong"
counter "$run" add 7000000
inside "$run" sh -c 'echo "a bad idea" > /work/plan'
counter "$run" get
wrong=$value
note "counter: $wrong, plan: $(inside "$run" cat /work/plan)"

title "9. Take it back, in place"
step checkout "$run" prepared
counter "$run" get
[ "$nonce" = "$committed_nonce" ] || die "another process answers after the checkout"
if [ "$value" -lt "$committed" ] || [ "$value" -ge 100000 ]; then
	die "the counter is at $value after the checkout; $committed was committed"
fi
[ "$(inside "$run" cat /work/plan)" = "no plan yet" ] || die "the file is not the committed one after the checkout"
right "memory and disk are back: counter $value, plan '$(inside "$run" cat /work/plan)'"
step reflog "$run"
saved=$("$SIETCH" show "$run@{1}") || die "$run@{1}, the state before the checkout, is lost"
[ -n "$saved" ] || die "$run@{1} shows nothing"
right "the bad idea is not lost: it is $run@{1}"

title "10. What happened"
step log --graph --oneline
step ps

title "11. Clean up"
step rm -f "${made[@]}"
made=()
left=$("$SIETCH" ps -aq | grep -xE "$run|plan-[1-4]" || true)
[ -z "$left" ] || die "still there: $left"

printf '\n%sAll as promised%s, in %d s.\n' "$green" "$plain" $((($(now) - begun) / 1000))
