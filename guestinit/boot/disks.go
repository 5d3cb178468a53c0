package boot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sietch-dev/sietch/guestinit/proto"
)

// disks are the block devices of a machine.
type disks struct {
	image, layer string // device nodes
}

// findDisks looks for the machine's disks among the virtio ones: by serial
// number, which is the disk's id where the VMM sets one, else by order. Their
// driver is loaded, so they are normally there at once.
func findDisks(sysBlock, dev string, wait time.Duration) (disks, error) {
	deadline := time.Now().Add(wait)
	for {
		d, err := lookAtDisks(sysBlock, dev)
		if err == nil || time.Now().After(deadline) {
			return d, err
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func lookAtDisks(sysBlock, dev string) (disks, error) {
	entries, err := os.ReadDir(sysBlock) // sorted by name
	if err != nil {
		return disks{}, fmt.Errorf("look for disks: %w", err)
	}
	var names []string
	bySerial := make(map[string]string)
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "vd") {
			continue
		}
		node := filepath.Join(dev, e.Name())
		if _, err := os.Stat(node); err != nil {
			continue
		}
		names = append(names, node)
		if serial, err := os.ReadFile(filepath.Join(sysBlock, e.Name(), "serial")); err == nil {
			bySerial[strings.TrimSpace(string(serial))] = node
		}
	}
	d := disks{image: bySerial[proto.ImageDisk], layer: bySerial[proto.LayerDisk]}
	if d.image == "" && d.layer == "" && len(names) >= 2 {
		d = disks{image: names[0], layer: names[1]}
	}
	switch {
	case len(names) == 0:
		return d, errors.New("no disk found")
	case d.image == "":
		return d, fmt.Errorf("no image disk among %s", strings.Join(names, ", "))
	case d.layer == "":
		return d, fmt.Errorf("no layer disk among %s", strings.Join(names, ", "))
	}
	return d, nil
}
