package boot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/guestinit/proto"
)

// setUpNetwork gives the card its constant address. The gateway's hardware
// address is constant too and entered by hand, so that the first packet of a
// fresh clone need not ask for it.
func (s *System) setUpNetwork() error {
	nl, err := dialRoute()
	if err != nil {
		return fmt.Errorf("set up network: %w", err)
	}
	defer nl.Close()
	const loopback = 1 // the index of lo in every network namespace
	if err := nl.up(loopback); err != nil {
		return fmt.Errorf("set up loopback: %w", err)
	}
	card, index, err := findCard("/sys/class/net")
	if err != nil {
		return fmt.Errorf("set up network: %w", err)
	}
	if card == "" {
		s.remark(errors.New("this machine has no network card"))
		return nil
	}
	// Before it is up: there is nobody to talk IPv6 to.
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+card+"/disable_ipv6", []byte("1"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		s.remark(err)
	}
	gateway := netip.MustParseAddr(proto.GatewayAddr)
	mac, err := net.ParseMAC(proto.GatewayMAC)
	if err != nil {
		return fmt.Errorf("set up network: %w", err)
	}
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"link", func() error { return nl.up(index) }},
		{"address", func() error {
			return nl.addAddress(index, netip.PrefixFrom(netip.MustParseAddr(proto.GuestAddr), proto.PrefixBits))
		}},
		{"neighbour", func() error { return nl.addNeighbour(index, gateway, mac) }},
		{"route", func() error {
			if !s.Config.Network {
				return nil
			}
			return nl.addDefaultRoute(index, gateway)
		}},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("set up %s of %s: %w", step.what, card, err)
		}
	}
	return nil
}

// findCard returns name and index of the interface with our hardware address,
// else of the first that is not the loopback; "" when there is none.
func findCard(dir string) (name string, index int, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", 0, err
	}
	for _, e := range entries {
		if e.Name() == "lo" {
			continue
		}
		mac, err := os.ReadFile(dir + "/" + e.Name() + "/address")
		if err == nil && strings.EqualFold(strings.TrimSpace(string(mac)), proto.GuestMAC) {
			name = e.Name()
			break
		}
		if name == "" {
			name = e.Name()
		}
	}
	if name == "" {
		return "", 0, nil
	}
	b, err := os.ReadFile(dir + "/" + name + "/ifindex")
	if err == nil {
		index, err = strconv.Atoi(strings.TrimSpace(string(b)))
	}
	return name, index, err
}

// routeConn speaks rtnetlink(7), one request and its answer at a time.
type routeConn struct {
	fd  int
	seq uint32
}

func dialRoute() (*routeConn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	return &routeConn{fd: fd}, nil
}

func (c *routeConn) Close() error { return unix.Close(c.fd) }

func (c *routeConn) up(index int) error {
	m := newMessage(unix.RTM_NEWLINK, 0)
	// struct ifinfomsg: family, pad, type, index, flags, change
	m.bytes(unix.AF_UNSPEC, 0)
	m.u16(0)
	m.u32(uint32(index))
	m.u32(unix.IFF_UP)
	m.u32(unix.IFF_UP)
	return c.do(m)
}

func (c *routeConn) addAddress(index int, p netip.Prefix) error {
	m := newMessage(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_REPLACE)
	// struct ifaddrmsg: family, prefixlen, flags, scope, index
	m.bytes(unix.AF_INET, byte(p.Bits()), unix.IFA_F_PERMANENT, unix.RT_SCOPE_UNIVERSE)
	m.u32(uint32(index))
	a := p.Addr().As4()
	m.attr(unix.IFA_LOCAL, a[:])
	m.attr(unix.IFA_ADDRESS, a[:])
	return c.do(m)
}

func (c *routeConn) addNeighbour(index int, ip netip.Addr, mac net.HardwareAddr) error {
	m := newMessage(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE)
	// struct ndmsg: family, pad, ifindex, state, flags, type
	m.bytes(unix.AF_INET, 0, 0, 0)
	m.u32(uint32(index))
	m.u16(unix.NUD_PERMANENT)
	m.bytes(0, 0)
	a := ip.As4()
	m.attr(unix.NDA_DST, a[:])
	m.attr(unix.NDA_LLADDR, mac)
	return c.do(m)
}

func (c *routeConn) addDefaultRoute(index int, gateway netip.Addr) error {
	m := newMessage(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE)
	// struct rtmsg: family, dst_len, src_len, tos, table, protocol, scope, type, flags
	m.bytes(unix.AF_INET, 0, 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_BOOT, unix.RT_SCOPE_UNIVERSE, unix.RTN_UNICAST)
	m.u32(0)
	a := gateway.As4()
	m.attr(unix.RTA_GATEWAY, a[:])
	m.attr(unix.RTA_OIF, binary.NativeEndian.AppendUint32(nil, uint32(index)))
	return c.do(m)
}

// message is a netlink request; the header's length and sequence are set last.
type message struct{ b []byte }

func newMessage(kind, flags uint16) *message {
	m := &message{b: make([]byte, unix.SizeofNlMsghdr, 128)}
	binary.NativeEndian.PutUint16(m.b[4:], kind)
	binary.NativeEndian.PutUint16(m.b[6:], flags|unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	return m
}

func (m *message) bytes(v ...byte) { m.b = append(m.b, v...) }
func (m *message) u16(v uint16)    { m.b = binary.NativeEndian.AppendUint16(m.b, v) }
func (m *message) u32(v uint32)    { m.b = binary.NativeEndian.AppendUint32(m.b, v) }

func (m *message) attr(kind uint16, v []byte) {
	m.u16(uint16(unix.SizeofRtAttr + len(v)))
	m.u16(kind)
	m.b = append(m.b, v...)
	m.b = append(m.b, make([]byte, -len(v)&3)...)
}

// do sends a request and waits for its acknowledgement.
func (c *routeConn) do(m *message) error {
	c.seq++
	binary.NativeEndian.PutUint32(m.b, uint32(len(m.b)))
	binary.NativeEndian.PutUint32(m.b[8:], c.seq)
	if err := unix.Sendto(c.fd, m.b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	buf := make([]byte, 4096)
	for {
		n, _, err := unix.Recvfrom(c.fd, buf, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		if n < unix.SizeofNlMsghdr+4 {
			return errors.New("truncated netlink answer")
		}
		if binary.NativeEndian.Uint16(buf[4:]) != unix.NLMSG_ERROR || binary.NativeEndian.Uint32(buf[8:]) != c.seq {
			continue // a notification of somebody else's doing
		}
		if code := int32(binary.NativeEndian.Uint32(buf[unix.SizeofNlMsghdr:])); code != 0 {
			return unix.Errno(-code)
		}
		return nil
	}
}
