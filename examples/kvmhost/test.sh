#!/usr/bin/env bash
# Runs the end-to-end tests under KVM, once for each virtual machine monitor.
# `make test-kvm` calls it.
#
# Where KVM works, here. Where it does not, in a sandbox of our own that emulates
# a CPU with virtualization (sietch run --nested): everything in there is ten to
# thirty times slower, and just as real. Its results and logs come back to
# $DATA/kvm/results.
#
#   SIETCH_CLOUD_HYPERVISOR  the cloud-hypervisor binary, else the one on PATH
#   SIETCH_TEST_REQUIRE      lanes whose absence is a failure, e.g. cloud-hypervisor
#   SIETCH_TEST_VMM          only this one: qemu or cloud-hypervisor
#   SIETCH_TEST_RUN          which tests, as for go test -run; default: all
#   SIETCH_TEST_KEEP         keep the outer machine for a look inside
#   SIETCH_TEST_BENCH        compare the monitors' speed instead, in so many rounds
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

sietch=$(realpath "${SIETCH:-bin/sietch}")
data=$(realpath -m "${DATA:-.data}")/kvm
results=$data/results
outer=kvmhost
require=,${SIETCH_TEST_REQUIRE-},
run=${SIETCH_TEST_RUN:-.}
mkdir -p "$data" "$results"
export CGO_ENABLED=0

say() { printf '>>> %s\n' "$*"; }

# --- what runs -----------------------------------------------------------------

monitors=(qemu)
hypervisor=$(command -v "${SIETCH_CLOUD_HYPERVISOR:-cloud-hypervisor}" || true)
if [ -n "$hypervisor" ]; then
	monitors+=(cloud-hypervisor)
	say "cloud-hypervisor: $("$hypervisor" --version)"
elif [[ $require == *,cloud-hypervisor,* ]]; then
	echo "test-kvm: cloud-hypervisor is required and neither on PATH nor in SIETCH_CLOUD_HYPERVISOR (hint: make cloud-hypervisor)" >&2
	exit 1
else
	say "skip: cloud-hypervisor is neither on PATH nor in SIETCH_CLOUD_HYPERVISOR (make cloud-hypervisor says how to get it)"
fi

[ -z "${SIETCH_TEST_VMM-}" ] || monitors=("$SIETCH_TEST_VMM")

# --- here ----------------------------------------------------------------------

if "$sietch" --data-dir "$data/doctor" doctor | grep -Eq '^ok +kvm '; then
	if [ -n "${SIETCH_TEST_BENCH-}" ]; then
		SIETCH_CLOUD_HYPERVISOR=$hypervisor SIETCH_DATA_DIR=$data/bench go run ./examples/bench -sietch "$sietch" \
			-vmms "$(IFS=,; echo "${monitors[*]}")" -rounds "$SIETCH_TEST_BENCH" | tee "$results/bench.md"
		exit
	fi
	for vmm in "${monitors[@]}"; do
		say "KVM works here: end-to-end tests on $vmm"
		SIETCH_VMM=$vmm SIETCH_BIN=$sietch SIETCH_TEST_DIR=$data SIETCH_CLOUD_HYPERVISOR=$hypervisor \
			SIETCH_TEST_REQUIRE=root,kvm,buildkit,$vmm \
			go test -count=1 -timeout 60m -v -run "$run" ./examples/acceptance 2>&1 | tee "$results/$vmm.log"
	done
	exit
fi

# --- in a machine of our own ------------------------------------------------------

export SIETCH_DATA_DIR=$data/host
say "KVM does not work here: preparing a machine that has it"
if ! "$sietch" image inspect debian:bookworm >"$results/base.log" 2>&1 &&
	! "$sietch" image pull debian:bookworm >>"$results/base.log" 2>&1; then
	"$sietch" image bootstrap debian:bookworm
fi
"$sietch" build -t "$outer" examples/kvmhost

# The kernel and the small image of the tests, made where that is quick.
seed=$data/seed
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
go run ./examples/small/context "$context"
"$sietch" --data-dir "$seed" build -q -t small "$context" >/dev/null
go test -c -o "$data/acceptance.test" ./examples/acceptance
go build -o "$data/bench.bin" ./examples/bench

machines=("$outer")
inside() { "$sietch" exec "$outer" -- "$@"; }
finish() {
	rm -rf "$context"
	for machine in "${machines[@]}"; do
		"$sietch" exec "$machine" -- dmesg >"$results/dmesg-$machine.log" 2>&1 || true
		if [ -n "${SIETCH_TEST_KEEP-}" ]; then
			say "the machine stays: SIETCH_DATA_DIR=$SIETCH_DATA_DIR $sietch exec -it $machine -- bash"
		else
			"$sietch" rm -f "$machine" || true
		fi
	done
}
"$sietch" inspect "$outer" >/dev/null 2>&1 && "$sietch" rm -f "$outer"
trap finish EXIT
# One CPU: emulated virtualization goes wrong with two after a few restores.
"$sietch" run --nested --cpus 1 --memory 6G --disk 24G --name "$outer" "$outer"
# To poll for a while before a guest is let sleep takes the one CPU from all others.
inside sh -c 'echo 0 >/sys/module/kvm/parameters/halt_poll_ns'
cp -a "$SIETCH_DATA_DIR/kernel" "$seed/"
# A file system of its own: image builds cannot use one overlay on another.
inside sh -c 'truncate -s 16G /data.img && mkfs.ext4 -q /data.img && mkdir -p /data /opt/tests && mount -o loop /data.img /data'
tar -C "$seed" -cf - kernel images | "$sietch" cp - "$outer:/opt"
"$sietch" cp "$sietch" "$outer:/usr/local/bin/sietch"
"$sietch" cp "$data/acceptance.test" "$outer:/opt/tests/"
"$sietch" cp "$data/bench.bin" "$outer:/opt/tests/"
"$sietch" cp examples/acceptance/testdata "$outer:/opt/tests/"
if [ -n "$hypervisor" ]; then "$sietch" cp "$(realpath "$hypervisor")" "$outer:/usr/local/bin/cloud-hypervisor"; fi

if [ -n "${SIETCH_TEST_BENCH-}" ]; then
	say "comparing ${monitors[*]} with KVM, in $outer"
	inside mkdir -p /data/bench
	inside cp -a --sparse=always /opt/kernel /opt/images /data/bench
	"$sietch" exec -e SIETCH_DATA_DIR=/data/bench -e SIETCH_BOOT_TIMEOUT=10m "$outer" -- \
		/opt/tests/bench.bin -sietch /usr/local/bin/sietch -image small -memory 256M \
		-vmms "$(IFS=,; echo "${monitors[*]}")" -rounds "$SIETCH_TEST_BENCH" | tee "$results/bench.md"
	exit
fi

# The whole suite on one monitor, in one machine.
suite() {
	local vmm=$1 machine=$2 began=$SECONDS id
	# In the background of the machine: it goes on when this script is ended, and
	# can be looked at again, in a kept machine.
	id=$("$sietch" exec -d -w /opt/tests \
		-e SIETCH_BIN=/usr/local/bin/sietch -e SIETCH_VMM="$vmm" -e SIETCH_BOOT_TIMEOUT=10m \
		-e SIETCH_TEST_SEED=/opt -e SIETCH_TEST_DIR=/data -e SIETCH_TEST_SLOW=20 \
		-e SIETCH_TEST_REQUIRE="root,kvm,buildkit,$vmm" "$machine" -- \
		./acceptance.test -test.v -test.timeout 6h -test.run "$run")
	"$sietch" process logs -f "$machine" "$id" >"$results/$vmm.log" 2>&1
	if [ "$("$sietch" process wait "$machine" "$id")" = 0 ]; then
		say "$vmm: green after $((SECONDS - began)) s"
	else
		say "$vmm: FAILED after $((SECONDS - began)) s"
		return 1
	fi
}

# A machine has one CPU. Where the host has one for each monitor, and the memory,
# each gets a copy of the machine that is ready now, and they run side by side.
failed=0 pids=()
available=$(awk '/^MemAvailable:/ { print int($2 / 1048576) }' /proc/meminfo)
for i in "${!monitors[@]}"; do
	vmm=${monitors[$i]} machine=$outer
	if [ "$i" -gt 0 ] && [ "$(nproc)" -gt "$i" ] && [ "$available" -ge $((8 * ${#monitors[@]})) ]; then
		machine=$outer-$vmm
		"$sietch" inspect "$machine" >/dev/null 2>&1 && "$sietch" rm -f "$machine"
		machines+=("$machine")
		"$sietch" fork --name "$machine" "$outer" >/dev/null
	fi
	queue[$i]=$machine
done
for i in "${!monitors[@]}"; do
	vmm=${monitors[$i]} machine=${queue[$i]}
	say "end-to-end tests on $vmm with KVM, in $machine: $results/$vmm.log"
	suite "$vmm" "$machine" &
	pids[$i]=$!
	# The next one in the same machine waits for this one.
	[ "${queue[$((i + 1))]-}" != "$machine" ] || wait "${pids[$i]}" || true
done
for i in "${!monitors[@]}"; do
	wait "${pids[$i]}" || failed=1
	log=$results/${monitors[$i]}.log
	say "${monitors[$i]}:"
	grep -E '^(--- |    --- FAIL|panic:|lane )' "$log" || tail -n 20 "$log"
done
exit $failed
