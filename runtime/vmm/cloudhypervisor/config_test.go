package cloudhypervisor

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestMakeConfig: the order of devices and their ids are part of the machine. A
// change here makes old state unloadable.
func TestMakeConfig(t *testing.T) {
	s := realSpec()
	s.Kernel, s.Initramfs, s.Cmdline = "/k", "/i", "quiet"
	want := `{"cpus":{"boot_vcpus":2,"max_vcpus":2,"nested":false},` +
		`"memory":{"size":0,"zones":[{"id":"ram","size":67108864,"file":"/d/ram \u003c\u0026\u003e","shared":false}]},` +
		`"payload":{"kernel":"/k","initramfs":"/i","cmdline":"console=ttyS0 quiet"},` +
		`"disks":[{"id":"image","path":"/d/image","readonly":true,"num_queues":1,"serial":"image","image_type":"Raw","sparse":false},` +
		`{"id":"layer","path":"/d/layer","readonly":false,"num_queues":1,"serial":"layer","image_type":"Raw","sparse":true}],` +
		`"rng":{"src":"/dev/urandom"},"serial":{"mode":"File","file":"/run/new/vmm/console/log"},"console":{"mode":"Tty"}}`
	got, err := json.Marshal(makeConfig(s))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
	s.Initramfs, s.Cmdline, s.Nested, s.Disks = "", "", true, nil
	c := makeConfig(s)
	if c.Payload.Cmdline != "console=ttyS0" || c.Payload.Initramfs != "" || !c.CPUs.Nested || c.Disks != nil {
		t.Errorf("with less: got %+v", c)
	}
	net, err := json.Marshal(makeNet(*s.NIC))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(`{"id":"net0","mac":"02:00:00:00:00:01","num_queues":2}`, string(net)); diff != "" {
		t.Errorf("card (-want +got):\n%s", diff)
	}
}
