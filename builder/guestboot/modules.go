package guestboot

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// bootModules are what every guest needs to reach its disks, its network and
// its console. Each must be a module or inside the kernel.
var bootModules = []string{
	"virtio_mmio", "virtio_pci", // transports
	"virtio_blk", "virtio_net", "virtio_console",
	"ext4", "overlay",
}

// deviceModules are for devices a VMM may add. They are taken where the kernel
// has them, and loaded where the device is.
var deviceModules = []string{"virtio_rng", "virtio_balloon"}

// guestModules are what a running guest needs, or what programs in it ask the
// kernel for: the power button, tunnels, bridges and packet filters, loop devices
// and FUSE. They are taken where the kernel has them; all they cost is their
// packed size.
var guestModules = []string{
	"button", "evdev",
	"tun", "veth", "bridge", "br_netfilter", "dummy", "macvlan", "wireguard",
	"fuse", "loop", "squashfs", "autofs4",
	"nf_tables", "nft_chain_nat", "nft_ct", "nft_nat", "nft_masq", "nft_redir", "nft_limit", "nft_log",
	"nft_reject_inet", "nft_reject_ipv4", "nft_reject_ipv6", "nft_fib_inet", "nft_compat", "nft_numgen", "nft_hash", "nft_quota",
	"nft_meta_bridge", "nft_reject_bridge", "nf_conntrack_netlink", "nfnetlink_log",
	"ip_tables", "iptable_filter", "iptable_nat", "iptable_mangle", "iptable_raw", "ipt_REJECT",
	"ip6_tables", "ip6table_filter", "ip6table_nat", "ip6table_mangle", "ip6t_REJECT",
	"xt_conntrack", "xt_MASQUERADE", "xt_REDIRECT", "xt_nat", "xt_addrtype", "xt_comment", "xt_multiport",
	"xt_mark", "xt_limit", "xt_tcpudp", "xt_state", "xt_LOG",
	// Only a machine that runs machines of its own loads these, see nestedModules
	// of guestinit/boot.
	"kvm_amd", "kvm_intel",
}

// module is what a kernel object says about itself in its .modinfo section.
type module struct {
	name    string
	depends []string // loaded before it
	aliases []string // what the kernel may ask for when it means this one
}

// moduleName is how the kernel calls the module in a file.
func moduleName(file string) string {
	name, _, _ := strings.Cut(path.Base(file), ".")
	return strings.ReplaceAll(name, "-", "_")
}

// readModules returns the loadable form of the modules wanted and of all they
// depend on, by name. files maps names to paths.
func readModules(files map[string]string, builtin []string) (map[string][]byte, error) {
	mods := make(map[string][]byte)
	// add puts a module and what it needs into found, as far as mods lacks them.
	var add func(name string, found map[string][]byte) error
	add = func(name string, found map[string][]byte) error {
		if mods[name] != nil || found[name] != nil || contains(builtin, name) {
			return nil
		}
		file, ok := files[name]
		if !ok {
			return fmt.Errorf("module %s: %w", name, errNoModule)
		}
		ko, err := readModule(file)
		if err != nil {
			return fmt.Errorf("module %s: %w", name, err)
		}
		info, err := parseModule(name, ko)
		if err != nil {
			return fmt.Errorf("module %s: %w", name, err)
		}
		found[name] = ko
		for _, d := range info.depends {
			if err := add(d, found); err != nil {
				return fmt.Errorf("module %s needs %w", name, err)
			}
		}
		return nil
	}
	for i, name := range slices.Concat(bootModules, deviceModules, guestModules) {
		found := make(map[string][]byte)
		err := add(name, found)
		if required := i < len(bootModules); err != nil && (required || !errors.Is(err, errNoModule)) {
			return nil, err
		}
		if err == nil {
			maps.Copy(mods, found)
		}
	}
	return mods, nil
}

var errNoModule = errors.New("not in this kernel's package")

// contains looks a name up in a sorted list.
func contains(sorted []string, name string) bool {
	_, found := slices.BinarySearch(sorted, name)
	return found
}

// parseModule reads what ko says about itself.
func parseModule(name string, ko []byte) (module, error) {
	m := module{name: name}
	f, err := elf.NewFile(bytes.NewReader(ko))
	if err != nil {
		return m, fmt.Errorf("not a kernel object: %w", err)
	}
	sec := f.Section(".modinfo")
	if sec == nil {
		return m, errors.New("not a kernel object: no .modinfo section")
	}
	info, err := sec.Data()
	if err != nil {
		return m, fmt.Errorf("read .modinfo: %w", err)
	}
	for field := range bytes.SplitSeq(info, []byte{0}) {
		key, value, _ := strings.Cut(string(field), "=")
		switch key {
		case "depends":
			for d := range strings.SplitSeq(value, ",") {
				if d != "" {
					m.depends = append(m.depends, moduleName(d))
				}
			}
		case "alias":
			m.aliases = append(m.aliases, value)
		}
	}
	return m, nil
}

// loadOrder sorts modules so that each comes after those it depends on, and
// otherwise by name. A dependency that is not in mods is inside the kernel.
func loadOrder(mods map[string]module) ([]module, error) {
	const (
		open = 1 + iota
		placed
	)
	state := make(map[string]int)
	var order []module
	var visit func(name string) error
	visit = func(name string) error {
		m, ok := mods[name]
		if !ok || state[name] == placed {
			return nil
		}
		if state[name] == open {
			return fmt.Errorf("modules depend on each other in a circle: %s", name)
		}
		state[name] = open
		for _, d := range m.depends {
			if err := visit(d); err != nil {
				return err
			}
		}
		state[name] = placed
		order = append(order, m)
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(mods)) {
		if err := visit(name); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// closure is the named modules and all they depend on.
func closure(mods map[string]module, names []string) map[string]bool {
	all := make(map[string]bool)
	var add func(name string)
	add = func(name string) {
		m, ok := mods[name]
		if !ok || all[name] {
			return
		}
		all[name] = true
		for _, d := range m.depends {
			add(d)
		}
	}
	for _, name := range names {
		add(name)
	}
	return all
}

// moduleIndex is what the guest init reads: one line a module in load order,
//
//	module NAME DEPENDENCY…
//
// each followed by its lines
//
//	alias PATTERN
//
// where PATTERN is as in modules.alias(5), without spaces.
func moduleIndex(order []module) []byte {
	var b bytes.Buffer
	present := make(map[string]bool)
	for _, m := range order {
		present[m.name] = true
		b.WriteString("module " + m.name)
		for _, d := range m.depends {
			if present[d] {
				b.WriteString(" " + d)
			}
		}
		b.WriteByte('\n')
		for _, a := range m.aliases {
			if !strings.ContainsAny(a, " \n") {
				b.WriteString("alias " + a + "\n")
			}
		}
	}
	return b.Bytes()
}
