package main

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sietch-dev/sietch/runtime"
)

func TestParseSize(t *testing.T) {
	tests := []struct {
		in   string
		want int64
		err  string
	}{
		{"512M", 512 << 20, ""}, {"512m", 512 << 20, ""}, {"512MB", 512 << 20, ""}, {"512MiB", 512 << 20, ""}, {"4G", 4 << 30, ""},
		{"1.5GiB", 3 << 29, ""}, {"0.3G", 322122547, ""}, {"2048K", 2 << 20, ""}, {"1T", 1 << 40, ""}, {"1P", 1 << 50, ""},
		{"1048576", 1 << 20, ""}, {"1048576B", 1 << 20, ""}, {"8191P", 8191 << 50, ""}, {"9223372036854775807", math.MaxInt64, ""},
		{"8192P", 0, "too large"}, {"99999999999999999999999", 0, "too large"}, {"9223372036854775808", 0, "too large"},
		{"0", 0, "must be more than 0"}, {"0G", 0, "must be more than 0"}, {"0.0000000001K", 0, "must be more than 0"},
		{"512", 0, "for mebibytes write 512M"}, {"1048575", 0, "for mebibytes"},
		{"", 0, "not a size"}, {"-1G", 0, "not a size"}, {"+1G", 0, "not a size"}, {"1e3", 0, "not a size"}, {"0x10M", 0, "not a size"},
		{"1_000M", 0, "not a size"}, {"NaN", 0, "not a size"}, {"Inf", 0, "not a size"}, {" 1G", 0, "not a size"}, {"1 G", 0, "not a size"}, {"1G ", 0, "not a size"},
		{"1GG", 0, "not a size"}, {"1E", 0, "not a size"}, {"1Gi", 0, "not a size"}, {".5G", 0, "not a size"}, {"1.G", 0, "not a size"}, {"1,5G", 0, "not a size"}, {"G", 0, "not a size"}, {"１G", 0, "not a size"},
	}
	for _, tt := range tests {
		got, err := parseSize(tt.in)
		if got != tt.want || !errorHas(err, tt.err) {
			t.Errorf("parseSize(%q) = %d, %v; want %d, %q", tt.in, got, err, tt.want, tt.err)
		}
	}
}

// errorHas says whether an error has a text, or is nil for none.
func errorHas(err error, text string) bool {
	if text == "" {
		return err == nil
	}
	return err != nil && strings.Contains(err.Error(), text)
}

func TestParseCount(t *testing.T) {
	tests := []struct {
		in   string
		want int
		err  string
	}{
		{"1", 1, ""}, {"007", 7, ""}, {"2147483647", math.MaxInt32, ""},
		{"0", 0, "must be 1 or more"}, {"2147483648", 0, "too large"}, {"9999999999999999999999", 0, "too large"},
		{"-1", 0, "not a whole number"}, {"1.5", 0, "not a whole number"}, {"", 0, "not a whole number"}, {"x", 0, "not a whole number"},
	}
	for _, tt := range tests {
		got, err := parseCount(tt.in, 1)
		if got != tt.want || !errorHas(err, tt.err) {
			t.Errorf("parseCount(%q) = %d, %v; want %d, %q", tt.in, got, err, tt.want, tt.err)
		}
	}
}

func TestParseDuration(t *testing.T) {
	tests := []struct {
		in   string
		want time.Duration
		err  string
	}{
		{"90s", 90 * time.Second, ""}, {"1h30m", 90 * time.Minute, ""}, {"10", 10 * time.Second, ""}, {"250ms", 250 * time.Millisecond, ""},
		{"0", 0, "more than 0"}, {"-5s", 0, "more than 0"}, {"soon", 0, "not a duration"}, {"", 0, "not a duration"}, {"1d", 0, "not a duration"},
	}
	for _, tt := range tests {
		got, err := parseDuration(tt.in)
		if !errorHas(err, tt.err) || err == nil && got != tt.want {
			t.Errorf("parseDuration(%q) = %v, %v; want %v, %q", tt.in, got, err, tt.want, tt.err)
		}
	}
}

func TestParsePort(t *testing.T) {
	tests := []struct {
		in   string
		want runtime.Port
		err  string
	}{
		{"8080:80", runtime.Port{Host: 8080, Guest: 80, Protocol: "tcp"}, ""},
		{"53:53/udp", runtime.Port{Host: 53, Guest: 53, Protocol: "udp"}, ""},
		{"1:65535/tcp", runtime.Port{Host: 1, Guest: 65535, Protocol: "tcp"}, ""},
		{"127.0.0.1:8080:80", runtime.Port{HostIP: "127.0.0.1", Host: 8080, Guest: 80, Protocol: "tcp"}, ""},
		{"[::1]:8080:80", runtime.Port{}, "only IPv4"}, {"[::]:8080:80/udp", runtime.Port{}, "only IPv4"}, {"::1:80:80", runtime.Port{}, "only IPv4"},
		{"[fe80::1%eth0]:80:80", runtime.Port{}, "only IPv4"}, {"[::ffff:1.2.3.4]:80:80", runtime.Port{}, "only IPv4"}, {"[127.0.0.1]:80:80", runtime.Port{}, "only IPv4"},
		{"80", runtime.Port{}, "write HOST:GUEST"}, {"", runtime.Port{}, "write HOST:GUEST"}, {"/udp", runtime.Port{}, "write HOST:GUEST"},
		{"0:80", runtime.Port{}, "host port 0 is no port"}, {"80:0", runtime.Port{}, "guest port 0 is no port"},
		{"65536:80", runtime.Port{}, "65536 is more than 65535"}, {"80:99999999999999999999", runtime.Port{}, "is more than 65535"},
		{"-1:80", runtime.Port{}, `host port "-1" is not a number`}, {"80:http", runtime.Port{}, `guest port "http" is not a number`}, {":80", runtime.Port{}, `host port "" is not a number`},
		{"80:80/sctp", runtime.Port{}, "not tcp or udp"}, {"80:80/", runtime.Port{}, "not tcp or udp"},
		{"8000-8010:80", runtime.Port{}, "not a number"},
		{"localhost:80:80", runtime.Port{}, "not an IP address"},
		{"300.1.1.1:80:80", runtime.Port{}, "not an IP address"}, {":80:80", runtime.Port{}, "not an IP address"}, {"[::1:80:80", runtime.Port{}, "not"},
	}
	for _, tt := range tests {
		got, err := parsePort(tt.in)
		if got != tt.want || !errorHas(err, tt.err) {
			t.Errorf("parsePort(%q) = %+v, %v; want %+v, %q", tt.in, got, err, tt.want, tt.err)
		}
	}
}

func TestParsePortsFindsCollisions(t *testing.T) {
	tests := []struct {
		ports []string
		want  []string
	}{
		{[]string{"80:80", "81:80", "80:80/udp"}, nil},
		{[]string{"127.0.0.1:80:80", "127.0.0.2:80:80"}, nil},
		{[]string{"80:80", "80:81"}, []string{`-p: "80:81" wants the same host port as "80:80"`}},
		{[]string{"x", "127.0.0.1:80:80", "0.0.0.0:80:80"}, []string{`-p: "x": write HOST:GUEST, such as 8080:80`, `-p: "0.0.0.0:80:80" wants the same host port as "127.0.0.1:80:80"`}},
		{[]string{"0.0.0.0:80:80", "10.0.0.1:80:80"}, []string{`-p: "10.0.0.1:80:80" wants the same host port as "0.0.0.0:80:80"`}},
	}
	for _, tt := range tests {
		var wrong problems
		parsePorts(tt.ports, "-p", &wrong)
		if diff := cmp.Diff(tt.want, wrong.lines); diff != "" {
			t.Errorf("%q (-want +got):\n%s", tt.ports, diff)
		}
	}
}
