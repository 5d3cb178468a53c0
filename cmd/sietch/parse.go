package main

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/sietch-dev/sietch/runtime"
)

var sizePattern = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?)(?:([kKmMgGtTpP])(?:i?[bB])?|[bB])?$`)

// parseSize reads a size such as 512M, 4G or 1.5GiB. Units are binary with and
// without the i; a fraction of a byte is dropped.
func parseSize(s string) (int64, error) {
	m := sizePattern.FindStringSubmatch(s)
	if m == nil {
		return 0, fmt.Errorf("%s is not a size: write a number and K, M, G or T, such as 512M or 1.5G", quote(s))
	}
	n, ok := new(big.Rat).SetString(m[1])
	if !ok {
		return 0, fmt.Errorf("%s is not a size", quote(s))
	}
	if m[2] != "" {
		power := strings.IndexByte("kmgtp", strings.ToLower(m[2])[0]) + 1
		n.Mul(n, new(big.Rat).SetInt(new(big.Int).Lsh(big.NewInt(1), uint(10*power))))
	}
	bytes := new(big.Int).Quo(n.Num(), n.Denom())
	switch {
	case !bytes.IsInt64():
		return 0, fmt.Errorf("%s is too large", quote(s))
	case bytes.Sign() == 0:
		return 0, fmt.Errorf("%s is nothing: it must be more than 0", quote(s))
	case m[2] == "" && bytes.Int64() < 1<<20:
		return 0, fmt.Errorf("%s is a number of bytes: for mebibytes write %sM", quote(s), m[1])
	}
	return bytes.Int64(), nil
}

// parseCount reads a whole number of at least least.
func parseCount(s string, least int) (int, error) {
	n, err := strconv.ParseUint(s, 10, 31)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return 0, fmt.Errorf("%s is too large", quote(s))
	case err != nil:
		return 0, fmt.Errorf("%s is not a whole number", quote(s))
	case int(n) < least:
		return 0, fmt.Errorf("%s is too small: it must be %d or more", quote(s), least)
	}
	return int(n), nil
}

// parseRatio reads a positive number.
func parseRatio(s string) (float64, error) {
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
		return 0, fmt.Errorf("%s is not a number", quote(s))
	}
	if n <= 0 {
		return 0, fmt.Errorf("%s must be more than 0", quote(s))
	}
	return n, nil
}

// parseDuration reads a positive duration; a bare number is seconds.
func parseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if n, bare := strconv.ParseUint(s, 10, 31); bare == nil {
		d, err = time.Duration(n)*time.Second, nil
	}
	if err != nil {
		return 0, fmt.Errorf("%s is not a duration, such as 90s, 5m or 1h30m", quote(s))
	}
	if d <= 0 {
		return 0, fmt.Errorf("%s must be more than 0", quote(s))
	}
	return d, nil
}

// parsePort reads [IP:]HOST:GUEST[/tcp|/udp]. The address is an IPv4 one: sandboxes
// have no other.
func parsePort(s string) (runtime.Port, error) {
	rest, protocol, given := strings.Cut(s, "/")
	if !given {
		protocol = "tcp"
	}
	if protocol != "tcp" && protocol != "udp" {
		return runtime.Port{}, fmt.Errorf("%s: protocol %s is not tcp or udp", quote(s), quote(protocol))
	}
	p := runtime.Port{Protocol: protocol}
	ports := rest
	if i := addressEnd(rest); i >= 0 {
		addr, err := netip.ParseAddr(strings.Trim(rest[:i], "[]"))
		switch {
		case err != nil:
			return runtime.Port{}, fmt.Errorf("%s: %s is not an IP address", quote(s), quote(rest[:i]))
		case !addr.Is4() || rest[0] == '[':
			return runtime.Port{}, fmt.Errorf("%s: only IPv4 addresses of the host are forwarded", quote(s))
		}
		p.HostIP, ports = addr.String(), rest[i+1:]
	}
	host, guest, ok := strings.Cut(ports, ":")
	if !ok {
		return runtime.Port{}, fmt.Errorf("%s: write HOST:GUEST, such as 8080:80", quote(s))
	}
	var err error
	if p.Host, err = portNumber(host); err != nil {
		return runtime.Port{}, fmt.Errorf("%s: host port %w", quote(s), err)
	}
	if p.Guest, err = portNumber(guest); err != nil {
		return runtime.Port{}, fmt.Errorf("%s: guest port %w", quote(s), err)
	}
	return p, nil
}

// addressEnd is where the colon behind the address is, or -1 without an address.
func addressEnd(s string) int {
	if strings.HasPrefix(s, "[") {
		if i := strings.Index(s, "]:"); i >= 0 {
			return i + 1
		}
		return -1
	}
	if strings.Count(s, ":") < 2 {
		return -1
	}
	return strings.LastIndexByte(s[:strings.LastIndexByte(s, ':')], ':')
}

func portNumber(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange), err == nil && n > 65535:
		return 0, fmt.Errorf("%s is more than 65535", s)
	case err != nil:
		return 0, fmt.Errorf("%s is not a number", quote(s))
	case n == 0:
		return 0, errors.New("0 is no port")
	}
	return uint16(n), nil
}

// parsePorts reads all forwarded ports and finds those that would collide.
func parsePorts(all []string, flag string, wrong *problems) []runtime.Port {
	var ports []runtime.Port
	var words []string
	for _, s := range all {
		p, err := parsePort(s)
		if err != nil {
			wrong.note(flag, err)
			continue
		}
		for i, q := range ports {
			if p.Host == q.Host && p.Protocol == q.Protocol && addressesMeet(p.HostIP, q.HostIP) {
				wrong.add("%s: %s wants the same host port as %s", flag, quote(s), quote(words[i]))
			}
		}
		ports, words = append(ports, p), append(words, s)
	}
	return ports
}

// addressesMeet says whether two sockets with these addresses exclude each other.
func addressesMeet(a, b string) bool {
	every := func(s string) bool { return s == "" || s == "0.0.0.0" }
	return a == b || every(a) || every(b)
}
