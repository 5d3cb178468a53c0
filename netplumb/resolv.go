package netplumb

import (
	"bufio"
	"bytes"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// resolvFiles are tried in order; the first with an address that a guest can
// reach wins. The later ones are where local caching resolvers, which listen on
// loopback and put that into resolv.conf, keep what they ask themselves.
var resolvFiles = []string{
	"/etc/resolv.conf",
	"/run/systemd/resolve/resolv.conf",
	"/run/NetworkManager/no-stub-resolv.conf",
}

// fallbackResolvers serve guests of a host that names none they could reach.
var fallbackResolvers = []netip.Addr{netip.MustParseAddr("1.1.1.1"), netip.MustParseAddr("8.8.8.8")}

// maxResolvers is what resolv.conf(5) allows too.
const maxResolvers = 3

// hostResolvers returns the resolvers that guests are sent to, and the file
// that names them; an empty file means the fallback.
func hostResolvers(read func(string) ([]byte, error)) (addrs []netip.Addr, file string) {
	for _, file := range resolvFiles {
		b, err := read(file)
		if err != nil {
			continue // a host without this resolver
		}
		if addrs := parseResolvConf(b); len(addrs) > 0 {
			return addrs, file
		}
	}
	return fallbackResolvers, ""
}

// parseResolvConf returns the IPv4 name servers that are not on loopback.
func parseResolvConf(b []byte) []netip.Addr {
	var addrs []netip.Addr
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		f := strings.Fields(s.Text())
		if len(f) < 2 || f[0] != "nameserver" {
			continue
		}
		a, err := netip.ParseAddr(f[1])
		if err != nil {
			continue
		}
		a = a.Unmap()
		if a.Is4() && !a.IsLoopback() && !a.IsUnspecified() && !a.IsMulticast() && !slices.Contains(addrs, a) && len(addrs) < maxResolvers {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

func readFile(name string) ([]byte, error) { return os.ReadFile(name) }
