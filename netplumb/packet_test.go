package netplumb

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// packet is an IPv4 packet that no well-behaved stack would send.
type packet struct {
	src, dst netip.AddrPort
	tcpFlags byte // 0: UDP
}

const tcpACK, tcpRST = 0x10, 0x04

func (p packet) bytes() []byte {
	payload := []byte("forged")
	var l4 []byte
	proto := byte(unix.IPPROTO_UDP)
	if p.tcpFlags == 0 {
		l4 = make([]byte, 8, 8+len(payload))
		binary.BigEndian.PutUint16(l4[4:], uint16(8+len(payload)))
	} else {
		proto = unix.IPPROTO_TCP
		l4 = make([]byte, 20, 20+len(payload))
		binary.BigEndian.PutUint32(l4[4:], 1000) // seq
		binary.BigEndian.PutUint32(l4[8:], 2000) // ack
		l4[12], l4[13] = 5<<4, p.tcpFlags
		binary.BigEndian.PutUint16(l4[14:], 65535)
	}
	binary.BigEndian.PutUint16(l4[0:], p.src.Port())
	binary.BigEndian.PutUint16(l4[2:], p.dst.Port())
	l4 = append(l4, payload...)
	src, dst := p.src.Addr().As4(), p.dst.Addr().As4()
	pseudo := append(append(src[:], dst[:]...), 0, proto, byte(len(l4)>>8), byte(len(l4)))
	at := 6
	if proto == unix.IPPROTO_TCP {
		at = 16
	}
	binary.BigEndian.PutUint16(l4[at:], checksum(append(pseudo, l4...)))

	ip := make([]byte, 20)
	ip[0], ip[8], ip[9] = 0x45, 64, proto
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+len(l4)))
	copy(ip[12:], p.src.Addr().AsSlice())
	copy(ip[16:], p.dst.Addr().AsSlice())
	binary.BigEndian.PutUint16(ip[10:], checksum(ip))
	return append(ip, l4...)
}

func checksum(b []byte) uint16 {
	var sum uint32
	if len(b)%2 == 1 {
		b = append(b[:len(b):len(b)], 0)
	}
	for i := 0; i < len(b); i += 2 {
		sum += uint32(b[i])<<8 | uint32(b[i+1])
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// wire is a socket below IP on one interface.
type wire struct {
	fd    int
	index int
}

// ethIP is ETH_P_IP in network byte order, as packet sockets want it.
const ethIP = unix.ETH_P_IP<<8&0xff00 | unix.ETH_P_IP>>8

// openWire opens the interface in the namespace of the calling thread.
func openWire(iface string) (*wire, error) {
	i, err := net.InterfaceByName(iface)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, ethIP)
	if err != nil {
		return nil, err
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: ethIP, Ifindex: i.Index}); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &wire{fd: fd, index: i.Index}, nil
}

func wireIn(t testing.TB, run func(func() error) error, iface string) *wire {
	t.Helper()
	var w *wire
	if err := run(func() (err error) { w, err = openWire(iface); return err }); err != nil {
		t.Fatalf("open %s: %v", iface, err)
	}
	t.Cleanup(func() { unix.Close(w.fd) })
	return w
}

func (w *wire) send(t testing.TB, to net.HardwareAddr, p packet) {
	t.Helper()
	a := &unix.SockaddrLinklayer{Protocol: ethIP, Ifindex: w.index, Halen: 6}
	copy(a.Addr[:], to)
	if err := unix.Sendto(w.fd, p.bytes(), 0, a); err != nil {
		t.Fatalf("send: %v", err)
	}
}

// route sends a packet by way of the host's own stack.
func route(t testing.TB, p packet) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, p.bytes(), 0, &unix.SockaddrInet4{Addr: p.dst.Addr().As4()}); err != nil {
		t.Fatal(err)
	}
}

// sees tells whether a packet that match accepts arrives within d. It is given
// the IPv4 header and what follows.
func (w *wire) sees(d time.Duration, match func(ip []byte) bool) bool {
	deadline := time.Now().Add(d)
	b := make([]byte, 2048)
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return false
		}
		tv := unix.NsecToTimeval(left.Nanoseconds())
		unix.SetsockoptTimeval(w.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
		n, from, err := unix.Recvfrom(w.fd, b, 0)
		if err != nil {
			continue
		}
		if l, ok := from.(*unix.SockaddrLinklayer); ok && l.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		if n >= 20 && match(b[:n]) {
			return true
		}
	}
}

// toPort matches packets for a port of either protocol.
func toPort(port uint16) func([]byte) bool {
	return func(ip []byte) bool { return len(ip) >= 24 && binary.BigEndian.Uint16(ip[22:]) == port }
}

// reset matches TCP resets from a port.
func reset(port uint16) func([]byte) bool {
	return func(ip []byte) bool {
		return len(ip) >= 40 && ip[9] == unix.IPPROTO_TCP && ip[33]&tcpRST != 0 && binary.BigEndian.Uint16(ip[20:]) == port
	}
}
