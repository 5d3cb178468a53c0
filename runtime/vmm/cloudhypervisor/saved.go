package cloudhypervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/sietch-dev/sietch/runtime/vmm"
)

// Files of a saved state, named by cloud-hypervisor.
const (
	configName = "config.json"   // VmConfig of the machine
	stateName  = "state.json"    // CPUs and devices
	ramName    = "memory-ranges" // RAM, which is not kept here
)

// object is a JSON object that is changed in a few places. All else stays as it
// is written, above all numbers: they use all of 64 bits.
type object map[string]json.RawMessage

func parseObject(data []byte) (object, error) {
	var o object
	if err := json.Unmarshal(data, &o); err != nil {
		return nil, err
	}
	if o == nil {
		return nil, errors.New("is no object")
	}
	return o, nil
}

// change replaces the value of key, which must be there, by what f makes of it.
func (o object) change(key string, f func(json.RawMessage) (any, error)) error {
	old, ok := o[key]
	if !ok {
		return fmt.Errorf("%q is missing", key)
	}
	v, err := f(old)
	if err != nil {
		return fmt.Errorf("%q: %w", key, err)
	}
	return o.set(key, v)
}

// inside changes the object that is the value of key.
func (o object) inside(key string, f func(object) error) error {
	return o.change(key, func(old json.RawMessage) (any, error) {
		in, err := parseObject(old)
		if err != nil {
			return nil, err
		}
		return in, f(in)
	})
}

// each changes the objects of the list that is the value of key; want is how
// many there must be. A list of none may be missing.
func (o object) each(key string, want int, f func(i int, in object) error) error {
	if raw, ok := o[key]; want == 0 && (!ok || string(raw) == "null") {
		return nil
	}
	return o.change(key, func(old json.RawMessage) (any, error) {
		var list []object
		if err := json.Unmarshal(old, &list); err != nil {
			return nil, err
		}
		if len(list) != want {
			return nil, fmt.Errorf("has %d entries, want %d", len(list), want)
		}
		for i, in := range list {
			if in == nil {
				return nil, fmt.Errorf("%d: is no object", i)
			}
			if err := f(i, in); err != nil {
				return nil, fmt.Errorf("%d: %w", i, err)
			}
		}
		return list, nil
	})
}

func (o object) set(key string, v any) error {
	data, err := json.Marshal(v)
	o[key] = data
	return err
}

// is checks a value that must be what it is.
func (o object) is(key string, want any) error {
	data, err := json.Marshal(want)
	if err != nil {
		return err
	}
	if got := string(o[key]); got != string(data) {
		return fmt.Errorf("%q is %s, want %s", key, got, data)
	}
	return nil
}

// placeConfig rewrites the config.json of a machine like s so that it names the
// files of s, and nothing else of where it was saved.
func placeConfig(config []byte, s vmm.Spec) ([]byte, error) {
	c, err := parseObject(config)
	if err == nil {
		err = place(c, s)
	}
	if err != nil {
		return nil, fmt.Errorf("saved configuration: %w", err)
	}
	return json.Marshal(c)
}

func place(c object, s vmm.Spec) error {
	err := c.inside("memory", func(memory object) error {
		return memory.each("zones", 1, func(_ int, zone object) error {
			return errors.Join(zone.is("id", zoneID), zone.is("size", s.MemoryBytes),
				zone.set("file", s.MemoryFile), zone.set("shared", false), zone.set("prefault", false))
		})
	})
	if err != nil {
		return err
	}
	// Nothing is booted, but an initramfs that is named would be opened.
	if err := c.set("payload", payloadConfig{Kernel: "/nonexistent"}); err != nil {
		return err
	}
	err = c.each("disks", len(s.Disks), func(i int, disk object) error {
		d := s.Disks[i]
		return errors.Join(disk.is("id", d.ID), disk.is("readonly", d.ReadOnly), disk.set("path", d.Path))
	})
	if err != nil {
		return err
	}
	cards := 0
	if s.NIC != nil {
		cards = 1
	}
	err = c.each("net", cards, func(_ int, net object) error {
		delete(net, "tap")
		// A card with descriptors expects to be given new ones.
		return errors.Join(net.is("id", s.NIC.ID), net.set("fds", []int{-1}))
	})
	if err != nil {
		return err
	}
	return errors.Join(c.set("serial", consoleConfig{Mode: "File", File: consolePath(s.RunDir)}),
		c.inside("console", func(console object) error {
			delete(console, "file")
			return console.set("mode", "Tty")
		}))
}

// withoutPlaces rewrites a config.json for being kept: it tells nothing about
// the host.
func withoutPlaces(config []byte, h vmm.Shape) ([]byte, error) {
	s := vmm.Spec{MemoryBytes: h.MemoryBytes, MemoryFile: zoneID}
	for _, d := range h.Disks {
		s.Disks = append(s.Disks, vmm.Disk{ID: d.ID, Path: d.ID, ReadOnly: d.ReadOnly})
	}
	if h.NIC != nil {
		s.NIC = &vmm.NIC{ID: h.NIC.ID}
	}
	return placeConfig(config, s)
}

// Sections of a state.json.
const (
	memorySection  = "memory-manager"
	cpuSection     = "cpu-manager"
	devicesSection = "device-manager"
)

// withoutRAM checks that a state.json is that of a machine of shape h, down to
// the last device, and rewrites it so that loading it reads no RAM, which stays
// what is mapped, and so that the guest's clock goes on from where it was.
func withoutRAM(state []byte, h vmm.Shape) ([]byte, error) {
	top, err := parseObject(state)
	if err == nil {
		err = errors.Join(hasState(top), ownState(top, stopClock), top.inside("snapshots", func(sections object) error {
			if err := errors.Join(sections.inside(cpuSection, func(o object) error { return checkCPUs(o, h.CPUs) }),
				sections.inside(devicesSection, func(o object) error { return checkDevices(o, h) })); err != nil {
				return err
			}
			return sections.inside(memorySection, func(o object) error { return ownState(o, dropRAM) })
		}))
	}
	if err != nil {
		return nil, fmt.Errorf("saved state: %w", err)
	}
	return json.Marshal(top)
}

// hasState checks that a section has state of its own.
func hasState(section object) error {
	return section.inside("snapshot_data", func(o object) error {
		var state string
		if err := json.Unmarshal(o["state"], &state); err != nil {
			return fmt.Errorf(`"state": %w`, err)
		}
		if !json.Valid([]byte(state)) {
			return errors.New(`"state" is cut off`)
		}
		return nil
	})
}

func checkCPUs(section object, cpus int) error {
	return section.inside("snapshots", func(list object) error {
		for i := range cpus {
			if err := list.inside(strconv.Itoa(i), hasState); err != nil {
				return err
			}
		}
		return nil
	})
}

func checkDevices(section object, h vmm.Shape) error {
	return errors.Join(hasState(section), section.inside("snapshots", func(list object) error {
		for _, id := range deviceIDs(h) {
			if err := list.inside(id, hasState); err != nil {
				return err
			}
		}
		return nil
	}))
}

// deviceIDs are the devices that a machine of shape h has, each virtio one with
// its PCI transport.
func deviceIDs(h vmm.Shape) []string {
	virtio := []string{"__console", "__rng"}
	for _, d := range h.Disks {
		virtio = append(virtio, d.ID)
	}
	if h.NIC != nil {
		virtio = append(virtio, h.NIC.ID)
	}
	ids := []string{"__serial", "__ioapic"}
	for _, id := range virtio {
		ids = append(ids, id, "_virtio-pci-"+id)
	}
	return ids
}

// ownState changes the state that a section has of its own, which is JSON in a
// string.
func ownState(section object, f func(object) error) error {
	return section.inside("snapshot_data", func(o object) error {
		return o.change("state", func(raw json.RawMessage) (any, error) {
			var text string
			if err := json.Unmarshal(raw, &text); err != nil {
				return nil, err
			}
			state, err := parseObject([]byte(text))
			if err != nil {
				return nil, err
			}
			if err := f(state); err != nil {
				return nil, err
			}
			data, err := json.Marshal(state)
			return string(data), err
		})
	})
}

// dropRAM empties the list of what was to be read from memory-ranges.
func dropRAM(state object) error {
	return state.inside("memory_ranges", func(ranges object) error {
		return ranges.change("data", func(json.RawMessage) (any, error) { return []int{}, nil })
	})
}

// Where struct kvm_clock_data has its flags, and the one that makes KVM_SET_CLOCK
// add the time that has passed since (linux/kvm.h).
const (
	clockFlagsOffset = 8
	clockRealtime    = 1 << 2
)

// stopClock keeps the guest's monotonic clock from leaping by the time its state
// was kept, which cloud-hypervisor has it do since v53: every timer and watchdog
// in the guest would expire at once. The time of day is the agent's to set. A
// clock of another form, or none, is left as it is.
func stopClock(state object) error {
	clock, err := parseObject(state["clock"])
	if err != nil {
		return nil
	}
	var kvm []byteNumber // the struct, byte by byte
	if json.Unmarshal(clock["Kvm"], &kvm) != nil || len(kvm) <= clockFlagsOffset {
		return nil
	}
	kvm[clockFlagsOffset] &^= clockRealtime // little-endian
	return errors.Join(clock.set("Kvm", kvm), state.set("clock", clock))
}

// byteNumber is a byte that is a number in JSON; lists of byte would be base64.
type byteNumber uint16
