package guestboot

import (
	"fmt"
	"os"
	"strings"
)

// cmdline is what every guest kernel is started with, besides the clock and what
// depends on the VMM. docs/boot.md says what each word is for and what it saves.
const cmdline = "quiet panic=-1 reboot=t audit=0 net.ifnames=0" +
	" cryptomgr.notests initcall_blacklist=load_system_certificate_list," +
	"ftrace_check_for_weak_functions,trace_eval_init,tracer_init_tracefs," +
	"crypto_kdf108_init,vga_arb_device_init" +
	" lsm=landlock,yama,bpf init_on_alloc=0" +
	" noreplace-smp 8250.nr_uarts=1" +
	" i8042.noaux i8042.nomux i8042.nopnp i8042.nokbd" +
	" random.trust_cpu=on"

// clock is the frequency of this host's time stamp counter, measured once after
// each start of the host.
type clock struct {
	BootID string `json:"boot_id"`
	TSCkHz int64  `json:"tsc_khz"` // 0: cannot be relied on
}

// cmdline is the whole command line on this host.
//
// A guest that QEMU emulates sees the host's counter and, on the machine type
// microvm, has nothing reliable to measure it with: if the attempt it makes at
// start is disturbed by a busy host it is left without a clock and hangs. So it
// is told. To a guest under KVM this is no news.
func (s store) cmdline() string {
	khz := s.tscKHz()
	if khz == 0 {
		return cmdline
	}
	return fmt.Sprintf("%s tsc_early_khz=%d tsc=reliable", cmdline, khz)
}

func (s store) tscKHz() int64 {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return measureTSC()
	}
	now := clock{BootID: strings.TrimSpace(string(b))}
	var known clock
	file := s.path("clock.json")
	if err := readRecord(file, &known); err == nil && known.BootID == now.BootID {
		return known.TSCkHz
	}
	now.TSCkHz = measureTSC()
	// Not being able to keep it costs the next call ten milliseconds.
	_ = writeRecord(file, now)
	return now.TSCkHz
}
