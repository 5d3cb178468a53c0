package cloudhypervisor

import (
	"strings"

	"github.com/sietch-dev/sietch/runtime/vmm"
)

// vmConfig is what vm.create is given (VmConfig of cloud-hypervisor.yaml). What
// is not named here keeps its default: no balloon, no vsock, nothing hot-plugged.
type vmConfig struct {
	CPUs    cpusConfig    `json:"cpus"`
	Memory  memoryConfig  `json:"memory"`
	Payload payloadConfig `json:"payload"`
	Disks   []diskConfig  `json:"disks,omitempty"`
	RNG     rngConfig     `json:"rng"`
	Serial  consoleConfig `json:"serial"`
	Console consoleConfig `json:"console"`
}

type cpusConfig struct {
	Boot   int  `json:"boot_vcpus"`
	Max    int  `json:"max_vcpus"`
	Nested bool `json:"nested"`
}

type memoryConfig struct {
	Size  int64        `json:"size"`
	Zones []zoneConfig `json:"zones"`
}

type zoneConfig struct {
	ID     string `json:"id"`
	Size   int64  `json:"size"`
	File   string `json:"file"`
	Shared bool   `json:"shared"`
}

type payloadConfig struct {
	Kernel    string `json:"kernel"`
	Initramfs string `json:"initramfs,omitempty"`
	Cmdline   string `json:"cmdline"`
}

type diskConfig struct {
	ID        string `json:"id"`
	Path      string `json:"path"`
	ReadOnly  bool   `json:"readonly"`
	NumQueues int    `json:"num_queues"`
	Serial    string `json:"serial"`
	ImageType string `json:"image_type"`
	Sparse    bool   `json:"sparse"` // what the guest discards becomes holes
}

type netConfig struct {
	ID        string `json:"id"`
	MAC       string `json:"mac"`
	NumQueues int    `json:"num_queues"`
}

type rngConfig struct {
	Src string `json:"src"`
}

type consoleConfig struct {
	Mode string `json:"mode"`
	File string `json:"file,omitempty"`
}

// zoneID names the one memory zone.
const zoneID = "ram"

// makeConfig describes the machine of s, less its network card: the tap is
// handed over with vm.add-net. The order of devices is part of the machine.
func makeConfig(s vmm.Spec) vmConfig {
	c := vmConfig{
		// As many as there will ever be: hot-plugged ones have hung on a pause.
		CPUs: cpusConfig{Boot: s.CPUs, Max: s.CPUs, Nested: s.Nested},
		// Only a zone can have a file.
		Memory:  memoryConfig{Zones: []zoneConfig{{ID: zoneID, Size: s.MemoryBytes, File: s.MemoryFile, Shared: false}}},
		Payload: payloadConfig{Kernel: s.Kernel, Initramfs: s.Initramfs, Cmdline: strings.TrimSpace("console=ttyS0 " + s.Cmdline)},
		RNG:     rngConfig{Src: "/dev/urandom"},
		// Files are truncated when they are opened, standard output is not: see
		// console.go for how the console's is made to append.
		Serial:  consoleConfig{Mode: "File", File: consolePath(s.RunDir)},
		Console: consoleConfig{Mode: "Tty"},
	}
	for _, d := range s.Disks {
		c.Disks = append(c.Disks, diskConfig{
			ID: d.ID, Path: d.Path, ReadOnly: d.ReadOnly, NumQueues: 1, Serial: d.ID,
			ImageType: "Raw", // one that is found out is not allowed to have its first sector written
			Sparse:    !d.ReadOnly,
		})
	}
	return c
}

// makeNet describes the network card: one pair of queues.
func makeNet(n vmm.NIC) netConfig { return netConfig{ID: n.ID, MAC: n.MAC, NumQueues: 2} }
