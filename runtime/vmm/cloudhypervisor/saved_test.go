package cloudhypervisor

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/runtime/vmm"
)

// realConfig is what v53.0 writes, with numbers and members that nobody here
// knows.
const realConfig = `{"cpus":{"boot_vcpus":2,"max_vcpus":2,"kvm_hyperv":false,"max_phys_bits":46,"nested":false},
"memory":{"size":0,"mergeable":false,"hotplug_method":"Acpi","shared":false,"prefault":false,
 "zones":[{"id":"ram","size":67108864,"file":"/old/ram","shared":true,"hugepages":false,"prefault":true,"reserve":false,"unknown":18446744073709551615}],"thp":true},
"payload":{"kernel":"/old/kernel","cmdline":"console=ttyS0 secret=1","initramfs":"/old/initramfs"},
"disks":[{"id":"image","pci_segment":0,"path":"/old/image","readonly":true,"num_queues":1,"serial":"image","image_type":"Raw"},
 {"id":"layer","pci_segment":0,"path":"/old/layer","readonly":false,"num_queues":1,"serial":"layer","image_type":"Raw","rate":1e400}],
"net":[{"id":"net0","tap":"old0","mac":"02:00:00:00:00:01","num_queues":2,"fds":[37]}],
"rng":{"src":"/dev/urandom"},"serial":{"file":"/old/run/vmm/console/log","mode":"File"},"console":{"mode":"Tty","pci_segment":0},
"debug_console":{"mode":"Off","iobase":233},"landlock_enable":false}`

func realSpec() vmm.Spec {
	return vmm.Spec{
		RunDir: "/run/new", CPUs: 2, MemoryBytes: 64 << 20, MemoryFile: "/d/ram <&>",
		Disks: []vmm.Disk{{ID: "image", Path: "/d/image", ReadOnly: true}, {ID: "layer", Path: "/d/layer"}},
		NIC:   &vmm.NIC{ID: "net0", Tap: "tap0", MAC: "02:00:00:00:00:01"},
	}
}

func TestPlaceConfig(t *testing.T) {
	got, err := placeConfig([]byte(realConfig), realSpec())
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(got, []byte("old")) || bytes.Contains(got, []byte("secret")) {
		t.Errorf("still tells where it was saved: %s", got)
	}
	for _, number := range []string{`18446744073709551615`, `1e400`} {
		if !bytes.Contains(got, []byte(number)) {
			t.Errorf("number %s was changed", number)
		}
	}
	want := strings.NewReplacer(
		`"file":"/old/ram","shared":true`, `"file":"/d/ram \u003c\u0026\u003e","shared":false`,
		`"prefault":true`, `"prefault":false`,
		`"kernel":"/old/kernel","cmdline":"console=ttyS0 secret=1","initramfs":"/old/initramfs"`, `"kernel":"/nonexistent","cmdline":""`,
		`"/old/image"`, `"/d/image"`, `"/old/layer"`, `"/d/layer"`,
		`"tap":"old0",`, ``, `[37]`, `[-1]`,
		`"/old/run/vmm/console/log"`, `"/run/new/vmm/console/log"`,
		`1e400`, `"big"`,
	).Replace(realConfig)
	var w, g any
	if err := errors.Join(json.Unmarshal([]byte(want), &w), json.Unmarshal(bytes.ReplaceAll(got, []byte("1e400"), []byte(`"big"`)), &g)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(w, g); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
	// What is kept tells nothing about the host, and can be placed.
	h := vmm.Shape{MemoryBytes: 64 << 20, Disks: []vmm.DiskShape{{ID: "image", ReadOnly: true}, {ID: "layer"}}, NIC: &vmm.NICShape{ID: "net0"}}
	kept, err := withoutPlaces([]byte(realConfig), h)
	if err != nil || bytes.Contains(kept, []byte("/old")) {
		t.Errorf("kept: %s, %v", kept, err)
	}
	again, err := placeConfig(kept, realSpec())
	if err != nil || !bytes.Equal(again, got) {
		t.Errorf("kept and placed: got %s, %v, want %s", again, err, got)
	}
}

func TestPlaceConfigRefuses(t *testing.T) {
	for what, c := range map[string]struct{ from, to, says string }{
		"cut off":      {`"landlock_enable":false}`, `"landl`, "unexpected end"},
		"no object":    {realConfig, `null`, "no object"},
		"no memory":    {`"memory"`, `"m"`, `"memory" is missing`},
		"no zones":     {`"zones"`, `"z"`, `"zones" is missing`},
		"another zone": {`"id":"ram"`, `"id":"mem"`, `"ram"`},
		"another size": {`67108864`, `67108865`, "67108865"},
		"a disk less": {`,
 {"id":"layer"`, `],"x":[{"id":"layer"`, "has 1 entries, want 2"},
		"another disk":    {`"id":"layer"`, `"id":"data"`, `"data"`},
		"a writable disk": {`"readonly":true`, `"readonly":false`, "readonly"},
		"no disk":         {`{"id":"image","pci_segment":0,"path":"/old/image","readonly":true,"num_queues":1,"serial":"image","image_type":"Raw"}`, "null", "no object"},
		"no card":         {`"net"`, `"n"`, `"net" is missing`},
		"another card":    {`"id":"net0"`, `"id":"net1"`, `"net1"`},
		"no console":      {`"console":{`, `"c":{`, `"console" is missing`},
	} {
		bad := strings.Replace(realConfig, c.from, c.to, 1)
		if bad == realConfig {
			t.Fatalf("%s: changes nothing", what)
		}
		if _, err := placeConfig([]byte(bad), realSpec()); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v, want %q", what, err, c.says)
		}
	}
	s := realSpec()
	s.NIC = nil
	if _, err := placeConfig([]byte(realConfig), s); err == nil || !strings.Contains(err.Error(), "has 1 entries, want 0") {
		t.Errorf("a card too many: got %v", err)
	}
}

func stateShape() vmm.Shape {
	return vmm.Shape{CPUs: 2, MemoryBytes: 4 << 30,
		Disks: []vmm.DiskShape{{ID: "image", ReadOnly: true}, {ID: "layer"}}, NIC: &vmm.NICShape{ID: "net0"}}
}

func TestWithoutRAM(t *testing.T) {
	h := stateShape()
	state := fakeStateJSON(2, deviceIDs(h), 4<<30)
	got, err := withoutRAM(state, h)
	if err != nil {
		t.Fatal(err)
	}
	s, err := parseFakeState(got)
	if err != nil || len(s.Ranges.Data) != 0 || s.Ranges.Data == nil || s.Big != bigNumber {
		t.Errorf("memory is %+v (%v)", s, err)
	}
	// Nothing else is different.
	back := strings.Replace(string(got), `\"data\":[]`, `\"data\":[{\"gpa\":0,\"length\":4294967296}]`, 1)
	back = strings.Replace(back, `7,8,2,0`, `7,8,`+fakeClockFlags+`,0`, 1) // the clock does not leap
	var w, g any
	if err := errors.Join(json.Unmarshal(state, &w), json.Unmarshal([]byte(back), &g)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(w, g); diff != "" {
		t.Errorf("state (-want +got):\n%s", diff)
	}
	if n := bytes.Count(state, []byte("18446744073709551613")); bytes.Count(got, []byte("18446744073709551613")) != n {
		t.Errorf("of %d large numbers some were changed: %s", n, got)
	}
	if again, err := withoutRAM(got, h); err != nil || !bytes.Equal(again, got) {
		t.Errorf("of a state without RAM: got %s, %v", again, err)
	}
}

// TestWithoutRAMRefuses: any part that is missing is noticed, so that a commit is
// never made of half a state.
func TestWithoutRAMRefuses(t *testing.T) {
	h := stateShape()
	whole := fakeStateJSON(2, deviceIDs(h), 4<<30)
	for cut := 0; cut < len(whole); cut += 7 {
		if _, err := withoutRAM(whole[:cut], h); err == nil {
			t.Fatalf("the first %d of %d bytes are accepted", cut, len(whole))
		}
	}
	for _, id := range deviceIDs(h) {
		var less []string
		for _, d := range deviceIDs(h) {
			if d != id {
				less = append(less, d)
			}
		}
		if _, err := withoutRAM(fakeStateJSON(2, less, 4<<30), h); err == nil || !strings.Contains(err.Error(), id) {
			t.Errorf("without %s: got %v", id, err)
		}
	}
	if _, err := withoutRAM(fakeStateJSON(1, deviceIDs(h), 4<<30), h); err == nil {
		t.Error("a state with too few CPUs is accepted")
	}
	for what, c := range map[string]struct{ from, to string }{
		"no memory":       {"memory-manager", "m"},
		"no ranges":       {"memory_ranges", "m"},
		"no list":         {`\"data\"`, `\"d\"`},
		"ranges no JSON":  {`"{\"memory_ranges\"`, `"\"memory_ranges\"`},
		"device no JSON":  {`"{\"id\":\"layer\"`, `"\"id\":\"layer\"`},
		"state no string": {`"{\"device_tree\":{}}"`, `{}`},
		"no state itself": {`"{\"clock\":{\"Kvm\":[1,2,3,4,5,6,7,8,` + fakeClockFlags + `,0,0,0,255,9]},\"common_cpuid\":[18446744073709551613]}"`, `null`},
	} {
		bad := strings.Replace(string(whole), c.from, c.to, 1)
		if bad == string(whole) {
			t.Fatalf("%s: changes nothing in %s", what, whole)
		}
		if _, err := withoutRAM([]byte(bad), h); err == nil {
			t.Errorf("%s: accepted", what)
		}
	}
}

// TestSaveDevices drives the ways a VMM may take to its state.
func TestSaveDevices(t *testing.T) {
	for _, c := range []struct {
		what   string
		orders []string
		says   string // empty: it works
	}{
		{"as v53", nil, ""},
		{"RAM first", []string{"ramfirst"}, ""},
		{"never refused", []string{"ramnever"}, ""},
		{"half a state when refused", []string{"cut"}, ""},
		{"always half", []string{"lack=layer"}, `"layer" is missing`},
		{"failing", []string{"fail=vm.snapshot"}, "told to fail"},
		{"dying", []string{"die=vm.snapshot"}, "gone"},
		{"garbage", []string{"garbage=vm.snapshot"}, "vm.snapshot"},
		{"no state", []string{"fail=vm.snapshot", "fail=vm.info"}, "vm.info"},
	} {
		t.Run(c.what, func(t *testing.T) {
			s := fakeSpec(t)
			m := launchFake(t, s, c.orders...)
			waitTick(t, m, s.ConsoleLog)
			dir := t.TempDir()
			if err := m.Pause(t.Context()); err != nil {
				t.Fatal(err)
			}
			err := m.SaveDevices(t.Context(), dir)
			if c.says != "" {
				if err == nil || !strings.Contains(err.Error(), c.says) {
					t.Fatalf("got %v, want %q", err, c.says)
				}
				if entries, _ := os.ReadDir(dir); len(entries) > 0 {
					t.Errorf("left: %v", entries)
				}
			} else {
				if err != nil {
					t.Fatal(err)
				}
				var names []string
				entries, _ := os.ReadDir(dir)
				for _, e := range entries {
					names = append(names, e.Name())
				}
				if diff := cmp.Diff([]string{configName, "machine.json", stateName}, names); diff != "" {
					t.Errorf("saved files (-want +got):\n%s", diff)
				}
			}
			if left, err := filepath.Glob(filepath.Join(ownDir(s.RunDir), "*")); err != nil || len(left) > 0 {
				t.Errorf("left in the VMM's directory: %q (%v)", left, err)
			}
			if c.says != "gone" {
				// Whatever became of it, the machine goes on.
				if err := m.Resume(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestOwnDirIsNotTrusted: what a VMM puts where its state is expected is not
// followed anywhere.
func TestOwnDirIsNotTrusted(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := own{dir: t.TempDir(), uid: os.Geteuid(), gid: os.Getegid()}
	if err := o.mkdir(snapshotName); err != nil {
		t.Fatal(err)
	}
	for name, make := range map[string]func(string) error{
		"link":      func(p string) error { return os.Symlink(secret, p) },
		"pipe":      func(p string) error { return unix.Mkfifo(p, 0o600) },
		"directory": func(p string) error { return os.Mkdir(p, 0o700) },
		"too large": func(p string) error {
			return errors.Join(os.WriteFile(p, nil, 0o600), os.Truncate(p, stateBytes+1))
		},
	} {
		if err := make(o.path(snapshotName, name)); err != nil {
			t.Fatal(err)
		}
		if data, err := o.read(snapshotName, name); err == nil {
			t.Errorf("%s: read %d bytes", name, len(data))
		}
	}
	// Nor is one in the place of the directory.
	if err := os.Symlink(filepath.Dir(secret), o.path("elsewhere")); err != nil {
		t.Fatal(err)
	}
	if data, err := o.read("elsewhere", "secret"); err == nil {
		t.Errorf("behind a link: read %q", data)
	}
	if err := o.create("elsewhere", "new"); err == nil {
		t.Error("a file was made behind a link")
	}
	if err := o.mkdir("elsewhere"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(secret); err != nil {
		t.Errorf("a link was followed by a removal: %v", err)
	}
	if err := os.WriteFile(o.path(snapshotName, "file"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if data, err := o.read(snapshotName, "file"); err != nil || string(data) != "x" {
		t.Errorf("a file: got %q, %v", data, err)
	}
}

func TestDamagedStateIsRefused(t *testing.T) {
	s := fakeSpec(t)
	whole := saveFake(t, s)
	for what, damage := range map[string]func(dir string) error{
		"no configuration":  func(d string) error { return os.Remove(filepath.Join(d, configName)) },
		"no state":          func(d string) error { return os.Remove(filepath.Join(d, stateName)) },
		"cut configuration": func(d string) error { return os.Truncate(filepath.Join(d, configName), 100) },
	} {
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(whole.Dir)); err != nil {
			t.Fatal(err)
		}
		if err := damage(dir); err != nil {
			t.Fatal(err)
		}
		s.RunDir, s.Restore = runDir(t), &vmm.Restore{Dir: dir, Saved: whole.Saved}
		m, err := New(Options{Binary: fakeBinary(t)}).Launch(t.Context(), s)
		if err == nil {
			m.Kill()
			t.Errorf("%s: launched", what)
		}
		if got := processesOf(t, s.RunDir); len(got) > 0 {
			t.Errorf("%s: processes left: %v", what, got)
		}
	}
}

func TestStopClock(t *testing.T) {
	for _, c := range []struct{ what, clock, want string }{
		{"real time", `{"Kvm":[1,0,0,0,0,0,0,128,14,0,0,0,0,0,0,0,9,9]}`, `{"Kvm":[1,0,0,0,0,0,0,128,10,0,0,0,0,0,0,0,9,9]}`},
		{"no real time", `{"Kvm":[1,0,0,0,0,0,0,128,2,0,0,0]}`, `{"Kvm":[1,0,0,0,0,0,0,128,2,0,0,0]}`},
		{"none", `null`, `null`},
		{"of another hypervisor", `{"Mshv":{"ref_time":7}}`, `{"Mshv":{"ref_time":7}}`},
		{"of another form", `{"Kvm":{"clock":18446744073709551613,"flags":6}}`, `{"Kvm":{"clock":18446744073709551613,"flags":6}}`},
		{"cut off", `{"Kvm":[1,2,3]}`, `{"Kvm":[1,2,3]}`},
	} {
		o := object{"clock": json.RawMessage(c.clock)}
		if err := stopClock(o); err != nil || string(o["clock"]) != c.want {
			t.Errorf("%s: got %s, %v, want %s", c.what, o["clock"], err, c.want)
		}
	}
	o := object{}
	if err := stopClock(o); err != nil || len(o) != 0 {
		t.Errorf("without: got %v, %v", o, err)
	}
}
