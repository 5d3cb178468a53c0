package acceptance

import (
	"fmt"
	"net"
	"strconv"
	"testing"
)

// TestPortsLater forwards ports of a machine that runs.
func TestPortsLater(t *testing.T) {
	r := apart(t)
	name, other := r.runSmall(t), r.runSmall(t)
	r.in(t, name, "mkdir -p /srv/www; echo served > /srv/www/index.html; httpd -p 8080 -h /srv/www")
	port, err := strconv.Atoi(r.ok(t, "port", "add", name, "8080"))
	if err != nil {
		t.Fatal(err)
	}
	if got := get(t, port); got != "served\n" {
		t.Errorf("through a port added at run time: got %q", got)
	}
	fixed := freePort(t)
	r.ok(t, "port", "add", name, fmt.Sprintf("127.0.0.1:%d:8080", fixed))
	if got := get(t, fixed); got != "served\n" {
		t.Errorf("through a second one: got %q", got)
	}
	if ports := r.inspect(t, name).Ports; len(ports) != 2 || ports[0].Host != port || ports[1].Host != fixed || ports[1].HostIP != "127.0.0.1" {
		t.Errorf("ports: %+v", ports)
	}
	r.fails(t, 4, []string{strconv.Itoa(port), name}, "port", "add", other, fmt.Sprintf("%d:80", port))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := l.Addr().(*net.TCPAddr).Port
	r.fails(t, 4, []string{strconv.Itoa(taken), "listens"}, "port", "add", name, fmt.Sprintf("127.0.0.1:%d:80", taken))
	if got := get(t, port); got != "served\n" {
		t.Errorf("after a port that was refused: got %q", got)
	}

	// They stay through checkout, stop and start.
	c := r.commit(t, name, "serving")
	r.ok(t, "checkout", "--no-save", name, c.ID)
	if got := get(t, port); got != "served\n" {
		t.Errorf("after checkout: got %q", got)
	}
	r.ok(t, "port", "rm", name, strconv.Itoa(port))
	refused(t, port)
	if got := get(t, fixed); got != "served\n" {
		t.Errorf("the other port after one was removed: got %q", got)
	}
	r.ok(t, "stop", name)
	r.ok(t, "port", "add", name, fmt.Sprintf("%d:8080", port))
	r.ok(t, "start", name)
	r.in(t, name, "httpd -p 8080 -h /srv/www")
	for _, p := range []int{port, fixed} {
		if got := get(t, p); got != "served\n" {
			t.Errorf("port %d after stop and start: got %q", p, got)
		}
	}
	r.remove(t, name, other)
	refused(t, port)
	refused(t, fixed)
}

// refused wants nobody to have the port.
func refused(t *testing.T, port int) {
	t.Helper()
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Errorf("port %d is not free: %v", port, err)
		return
	}
	l.Close()
	if c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
		c.Close()
		t.Errorf("port %d is still forwarded", port)
	}
}
