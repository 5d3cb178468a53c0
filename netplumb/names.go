package netplumb

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
)

// netnsDir is where ip-netns(8) looks for namespaces too.
const netnsDir = "/run/netns"

// uplinkName is the veth inside a namespace.
const uplinkName = "uplink"

// bridgePrefix begins the bridge name of every instance on a host: rules of one
// instance recognise the others by it.
const bridgePrefix = "sietch-"

// idLen is the length of a sandbox id. Together with the five characters that
// stand for the instance it fills the 15 that Linux allows for an interface.
const idLen = 10

// names derives the name of every kernel object from the instance and the
// sandbox id, so that a sweep finds them without any record.
type names struct {
	instance string
	veths    string // what the host ends of this instance's veths begin with
}

func newNames(instance string) (names, error) {
	raw, err := hex.DecodeString(instance)
	if err != nil || len(raw) != 3 || strings.ToLower(instance) != instance {
		return names{}, fmt.Errorf("instance %q: want 6 lower-case hexadecimal digits", instance)
	}
	return names{instance: instance, veths: "s" + base64.RawURLEncoding.EncodeToString(raw)}, nil
}

func (n names) bridge() string          { return bridgePrefix + n.instance }
func (n names) table() string           { return bridgePrefix + n.instance }
func (n names) veth(id string) string   { return n.veths + id }
func (n names) netns(id string) string  { return bridgePrefix + n.instance + "-" + id }
func (n names) nsPath(id string) string { return filepath.Join(netnsDir, n.netns(id)) }
func (n names) bridgeMAC() net.HardwareAddr {
	raw, _ := hex.DecodeString(n.instance) // checked by newNames
	return net.HardwareAddr{0x06, 0x73, raw[0], raw[1], raw[2], 0x01}
}

// vethID and netnsID turn a name back into a sandbox id; ok is false for names
// that are not of this instance.
func (n names) vethID(name string) (id string, ok bool) {
	id, ok = strings.CutPrefix(name, n.veths)
	return id, ok && validID(id)
}

func (n names) netnsID(name string) (id string, ok bool) {
	id, ok = strings.CutPrefix(name, bridgePrefix+n.instance+"-")
	return id, ok && validID(id)
}

// uplinkMAC follows from the address, so that a host that remembers the
// neighbour of a reused address is still right.
func uplinkMAC(a netip.Addr) net.HardwareAddr {
	b := a.As4()
	return net.HardwareAddr{0x02, 0x73, b[0], b[1], b[2], b[3]}
}

func validID(id string) bool {
	if len(id) != idLen {
		return false
	}
	for _, c := range id {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}
