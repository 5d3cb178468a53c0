package machine

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/sietch-dev/sietch/guestinit/boot"
)

// quietAfter keeps what can wait out of the way of what a fresh machine is
// wanted for.
const quietAfter = 500 * time.Millisecond

// settleDown does what can wait: the power button, and giving back the memory
// that only booting needed, so that it is in no commit, and no collection of
// garbage falls into the first moments of a fork.
func (m *Machine) settleDown(modules *boot.Modules) {
	time.Sleep(quietAfter)
	m.watchPowerButton(modules)
	debug.FreeOSMemory()
}

// watchPowerButton powers the machine off when the VMM presses its button,
// which is how the host asks when it cannot reach the agent.
func (m *Machine) watchPowerButton(modules *boot.Modules) {
	for _, name := range []string{"button", "evdev"} {
		if modules.Has(name) {
			if err := modules.Load(name); err != nil {
				report(fmt.Errorf("watch power button: %w", err))
				return
			}
		}
	}
	names, _ := filepath.Glob("/sys/class/input/event*/device/name")
	for _, file := range names {
		b, err := os.ReadFile(file)
		if err != nil || strings.TrimSpace(string(b)) != "Power Button" {
			continue
		}
		event := filepath.Base(filepath.Dir(filepath.Dir(file)))
		f, err := os.Open("/dev/input/" + event)
		if err != nil {
			report(fmt.Errorf("watch power button: %w", err))
			continue
		}
		go func() {
			defer f.Close()
			if pressed(f) {
				m.shutDown()
			}
		}()
	}
}

// pressed waits for the power key among the input events in r; false when there
// will be no more.
func pressed(r io.Reader) bool {
	const (
		keyEvent = 1   // EV_KEY
		powerKey = 116 // KEY_POWER
		down     = 1
	)
	// struct input_event: a time of 16 bytes, type, code, value
	event := make([]byte, 24)
	for {
		if _, err := io.ReadFull(r, event); err != nil {
			return false
		}
		kind, code := binary.NativeEndian.Uint16(event[16:]), binary.NativeEndian.Uint16(event[18:])
		if kind == keyEvent && code == powerKey && binary.NativeEndian.Uint32(event[20:]) == down {
			return true
		}
	}
}
