package netplumb

import (
	"os"
	"path/filepath"
	"strings"
)

// ifaceSysctl is the file of an interface setting such as "ipv4/forwarding",
// in the network namespace of the thread that opens it.
func ifaceSysctl(name, iface string) string {
	family, key, _ := strings.Cut(name, "/")
	return filepath.Join("/proc/sys/net", family, "conf", iface, key)
}

func readSysctl(file string) (string, error) {
	b, err := os.ReadFile(file)
	return strings.TrimSpace(string(b)), err
}

func writeSysctl(file, value string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}
