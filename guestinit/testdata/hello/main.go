// Command hello is the only file of an image.
package main

import (
	"fmt"
	"os"
	"strings"
	"time"
)

func main() {
	if len(os.Args) > 1 {
		time.Sleep(time.Hour)
	}
	host, _ := os.Hostname()
	dns, _ := os.ReadFile("/etc/resolv.conf")
	fmt.Printf("hello from %s, uid %d, home %s, dns %s\n", host, os.Getuid(), os.Getenv("HOME"), strings.TrimSpace(string(dns)))
}
