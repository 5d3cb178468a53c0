package netplumb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// taken looks at other instances' port maps and then does what a server would:
// bind.
func (k *linux) taken(_ context.Context, p Port) (string, error) {
	c, release, err := k.nft()
	if err != nil {
		return "", err
	}
	defer release()
	others, err := k.otherTables(c)
	if err != nil {
		return "", err
	}
	for _, t := range others {
		for _, set := range []string{mapPorts, mapPortsAt} {
			es, err := elementsIn(c, nftables.TableFamilyIPv4, t, set)
			if err != nil {
				return "", err
			}
			for _, se := range es {
				if e, ok := parsePort(set, se); ok && e.port.overlaps(p) {
					return fmt.Sprintf("a sandbox of another data directory has it (instance %s)", strings.TrimPrefix(t, bridgePrefix)), nil
				}
			}
		}
	}
	return tryBind(p)
}

// tryBind says why a server could not have the port.
func tryBind(p Port) (string, error) {
	kind := unix.SOCK_STREAM
	if p.Protocol == UDP {
		kind = unix.SOCK_DGRAM
	}
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	if p.Protocol == TCP {
		// As servers do: connections in TIME_WAIT are not in the way. Bound but
		// not listening, the socket is in nobody's way either.
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return "", os.NewSyscallError("setsockopt", err)
		}
	}
	err = unix.Bind(fd, &unix.SockaddrInet4{Port: int(p.Host), Addr: p.HostIP.As4()})
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return "a process of the host listens on it", nil
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return "the host does not have this address", nil
	case errors.Is(err, unix.EACCES):
		return "not permitted to use it", nil
	}
	return "", os.NewSyscallError("bind", err)
}
