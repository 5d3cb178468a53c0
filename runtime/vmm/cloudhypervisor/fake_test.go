package cloudhypervisor

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/runtime/vmm"
	"github.com/sietch-dev/sietch/runtime/vmm/vmmtest/counter"
)

// The test binary is also a fake cloud-hypervisor: it takes the arguments the
// driver gives, serves the same HTTP API on the same kind of socket and opens the
// same files in the same ways, with the counting guest of vmmtest in place of
// virtual hardware. What it is to do wrong is in the name it is called by.

// fakeBinary is a fake that does what each of the orders says:
//
//	version=V     tells that version
//	fail=E        answers 500 at endpoint E
//	die=E         says something and ends with status 3 at endpoint E
//	silent=E      never answers at endpoint E
//	garbage=E     answers something that is not HTTP at endpoint E
//	ramfirst      looks for the file of RAM before it writes its state
//	ramnever      writes RAM over a file that is there
//	cut           writes half of its state, when RAM is refused
//	lack=D        leaves device D out of its state
func fakeBinary(t testing.TB, orders ...string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), strings.Join(append([]string{fakeMark}, orders...), ";"))
	if os.Link(self, path) == nil {
		return path
	}
	data, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

const fakeMark = "fake-cloud-hypervisor"

// The process of a fake takes the place of the test binary before any test is run.
func init() {
	name, orders, _ := strings.Cut(filepath.Base(os.Args[0]), ";")
	if name != fakeMark {
		return
	}
	f := &fakeVMM{orders: strings.Split(orders, ";")}
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		fmt.Printf("cloud-hypervisor v%s\nMigration Protocol Versions: 0\n", f.order("version", "53.0.0"))
		os.Exit(0)
	}
	if err := f.run(); err != nil {
		fmt.Fprintln(os.Stderr, "Error: Cloud Hypervisor exited with the following chain of errors:\n  0:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// counterBytes is how much memory a fake counts in.
const counterBytes = 256 << 10

// fakeVMM is the process of a fake, seen from inside.
type fakeVMM struct {
	orders  []string
	runDir  string
	ended   chan error
	mu      sync.Mutex
	config  *fakeConfig
	state   string
	ram     []byte
	console *os.File
	disk    *os.File // nil without a writable one
	files   []*os.File
	last    uint64 // tick to power off at, 0: none
	again   uint64 // tick to restart at, 0: none
}

// fakeConfig is the part of VmConfig a fake looks at.
type fakeConfig struct {
	Memory struct {
		Size  int64
		Zones []struct {
			ID     string `json:"id"`
			Size   int64  `json:"size"`
			File   string `json:"file"`
			Shared bool   `json:"shared"`
		}
	} `json:"memory"`
	Payload struct{ Kernel, Initramfs, Cmdline string } `json:"payload"`
	Disks   []struct {
		ID, Path  string
		ReadOnly  bool `json:"readonly"`
		ImageType string
	} `json:"disks"`
	Net []struct {
		ID  string `json:"id"`
		FDs []int  `json:"fds"`
	} `json:"net"`
	Serial, Console struct{ Mode, File string }

	raw map[string]json.RawMessage
}

// order is the value of an order, or other when it was not given.
func (f *fakeVMM) order(name, other string) string {
	for _, o := range f.orders {
		if k, v, _ := strings.Cut(o, "="); k == name {
			return v
		}
	}
	return other
}

func (f *fakeVMM) told(order string) bool { return slices.Contains(f.orders, order) }

func (f *fakeVMM) event(source, event string) {
	fmt.Fprintf(os.NewFile(4, "events"), "{\n  \"source\": %q,\n  \"event\": %q,\n  \"properties\": null\n}\n\n", source, event)
}

func (f *fakeVMM) run() error {
	want := []string{"--api-socket", "", "--event-monitor", "fd=4", "--seccomp", "true"}
	if len(os.Args) != 1+len(want) {
		return fmt.Errorf("arguments are %q", os.Args)
	}
	for i, w := range want {
		if w != "" && os.Args[i+1] != w {
			return fmt.Errorf("arguments are %q, want %q", os.Args, want)
		}
	}
	path, number, ok := strings.Cut(strings.TrimPrefix(os.Args[2], "path="), ",fd=")
	fd, err := strconv.Atoi(number)
	if !ok || err != nil {
		return fmt.Errorf("API socket is %q", os.Args[2])
	}
	f.runDir = filepath.Dir(path)
	l, err := net.FileListener(os.NewFile(uintptr(fd), path))
	if err != nil {
		return err
	}
	f.ended = make(chan error, 2)
	go func() { f.ended <- f.count() }()
	go func() { f.ended <- f.serve(l) }()
	return <-f.ended
}

// serve answers one request after the other.
func (f *fakeVMM) serve(l net.Listener) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		f.answer(c.(*net.UnixConn))
		c.Close()
	}
}

func (f *fakeVMM) answer(c *net.UnixConn) {
	first, oob := make([]byte, 64<<10), make([]byte, 1<<10)
	n, oobn, _, _, err := c.ReadMsgUnix(first, oob)
	if err != nil {
		return
	}
	var files []*os.File
	if messages, err := unix.ParseSocketControlMessage(oob[:oobn]); err == nil {
		for _, m := range messages {
			fds, _ := unix.ParseUnixRights(&m)
			for _, fd := range fds {
				files = append(files, os.NewFile(uintptr(fd), "received"))
			}
		}
	}
	req, err := http.ReadRequest(bufio.NewReader(io.MultiReader(bytes.NewReader(first[:n]), c)))
	if err != nil {
		return
	}
	endpoint := strings.TrimPrefix(req.URL.Path, "/api/v1/")
	if f.told("die=" + endpoint) {
		fmt.Fprintln(os.Stderr, "the sky is falling")
		os.Exit(3)
	}
	if f.told("garbage=" + endpoint) {
		io.WriteString(c, "220 ready\r\n")
		return
	}
	if f.told("silent=" + endpoint) {
		io.Copy(io.Discard, c)
		return
	}
	status, result := 204, any(nil)
	body, err := io.ReadAll(req.Body)
	switch {
	case err != nil || len(req.TransferEncoding) > 0:
		status = 400
	case f.told("fail=" + endpoint):
		status, result = 500, []string{"Error from API", "It could not", "told to fail"}
	default:
		f.mu.Lock()
		result, err = f.do(req.Method+" "+endpoint, body, files)
		f.mu.Unlock()
		if err != nil {
			status, result = 500, append([]string{"Error from API"}, strings.Split(err.Error(), ": ")...)
		} else if result != nil {
			status = 200
		}
	}
	var data []byte
	if result != nil {
		data, _ = json.Marshal(result)
	}
	fmt.Fprintf(c, "HTTP/1.1 %d \r\nServer: Cloud Hypervisor API\r\nConnection: keep-alive\r\n", status)
	if status != 204 {
		fmt.Fprintf(c, "Content-Type: application/json\r\nContent-Length: %d\r\n", len(data))
	}
	fmt.Fprintf(c, "\r\n%s", data)
}

func (f *fakeVMM) do(what string, body []byte, files []*os.File) (any, error) {
	if len(body) > 51200 {
		return nil, errors.New("body too large")
	}
	must := func(state string) error {
		if f.state != state {
			return fmt.Errorf("Invalid transition: InvalidStateTransition(%s)", f.state)
		}
		return nil
	}
	switch what {
	case "PUT fake.listen": // what a VMM has no business to do
		var plain net.ListenConfig
		plain.SetMultipathTCP(false) // which Landlock does not know about
		l, err := plain.Listen(context.Background(), "tcp4", "127.0.0.1:0")
		if err == nil {
			err = l.Close()
		}
		return nil, err
	case "GET vmm.ping":
		return map[string]string{"version": f.order("version", "53.0.0")}, nil
	case "GET vm.info":
		return map[string]any{"state": f.state, "config": f.config}, nil
	case "PUT vm.create":
		if f.config != nil {
			return nil, errors.New("VM already created")
		}
		c, err := parseFakeConfig(body)
		if err != nil {
			return nil, err
		}
		f.state = "Created"
		return nil, f.openConsole(c)
	case "PUT vm.add-net":
		var n struct {
			ID        string
			MAC       string
			NumQueues int `json:"num_queues"`
		}
		if err := json.Unmarshal(body, &n); err != nil {
			return nil, err
		}
		if n.NumQueues != 2*len(files) || n.MAC == "" || f.config == nil {
			return nil, errors.New("Number of FDs does not match number of queues")
		}
		f.files = append(f.files, files...)
		f.config.raw["net"], _ = json.Marshal([]any{map[string]any{"id": n.ID, "fds": []int{30}, "tap": "old"}})
		return nil, nil
	case "PUT vm.boot":
		if err := must("Created"); err != nil {
			return nil, err
		}
		for _, p := range []string{f.config.Payload.Kernel, f.config.Payload.Initramfs} {
			if p == "" {
				continue
			}
			k, err := os.Open(p)
			if err != nil {
				return nil, fmt.Errorf("Cannot open kernel file: %w", err)
			}
			k.Close()
		}
		if err := f.openDevices(); err != nil {
			return nil, err
		}
		f.state = "Running"
		f.event("vm", "booted")
		return nil, nil
	case "PUT vm.restore":
		return nil, f.restore(body, files)
	case "PUT vm.pause":
		if err := must("Running"); err != nil {
			return nil, err
		}
		f.state = "Paused"
		f.event("vm", "paused")
		return nil, nil
	case "PUT vm.resume":
		if err := must("Paused"); err != nil {
			return nil, err
		}
		f.state = "Running"
		f.event("vm", "resumed")
		return nil, nil
	case "PUT vm.snapshot":
		var r struct {
			URL string `json:"destination_url"`
		}
		if err := json.Unmarshal(body, &r); err != nil {
			return nil, err
		}
		if f.state != "Paused" {
			return nil, errors.New("Trying to snapshot while VM is running")
		}
		return nil, f.snapshot(strings.TrimPrefix(r.URL, "file://"))
	case "PUT vm.power-button":
		return nil, must("Running") // the counting guest does not know what that is
	case "PUT vm.shutdown", "PUT vmm.shutdown":
		f.ended <- nil
		return nil, nil
	}
	return nil, errors.New("Not Found")
}

func parseFakeConfig(data []byte) (*fakeConfig, error) {
	c := new(fakeConfig)
	if err := json.Unmarshal(data, c); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &c.raw); err != nil {
		return nil, err
	}
	if c.Memory.Size != 0 || len(c.Memory.Zones) != 1 || c.Memory.Zones[0].Shared || c.Memory.Zones[0].File == "" {
		return nil, fmt.Errorf("memory is %+v", c.Memory)
	}
	if c.Serial.Mode != "File" || c.Console.Mode != "Tty" {
		return nil, fmt.Errorf("consoles are %+v and %+v", c.Serial, c.Console)
	}
	return c, nil
}

// openConsole opens the console's file as cloud-hypervisor does.
func (f *fakeVMM) openConsole(c *fakeConfig) (err error) {
	if f.console, err = os.OpenFile(c.Serial.File, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o666); err != nil {
		return fmt.Errorf("Error creating console device: %w", err)
	}
	f.config = c
	return nil
}

func (f *fakeVMM) openDevices() error {
	zone := f.config.Memory.Zones[0]
	mem, err := os.Open(zone.File)
	if err != nil {
		return err
	}
	defer mem.Close()
	if f.ram, err = unix.Mmap(int(mem.Fd()), 0, int(zone.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE); err != nil {
		return fmt.Errorf("map memory: %w", err)
	}
	for _, d := range f.config.Disks {
		flag := os.O_RDWR
		if d.ReadOnly {
			flag = os.O_RDONLY
		}
		disk, err := os.OpenFile(d.Path, flag, 0)
		if err != nil {
			return err
		}
		f.files = append(f.files, disk)
		if !d.ReadOnly && f.disk == nil {
			f.disk = disk
		}
	}
	for _, word := range strings.Fields(f.config.Payload.Cmdline) {
		fmt.Sscanf(word, "vmmtest.ticks=%d", &f.last)
		fmt.Sscanf(word, "fake.restart=%d", &f.again)
	}
	return nil
}

func (f *fakeVMM) restore(body []byte, files []*os.File) error {
	var r restoreRequest
	if err := json.Unmarshal(body, &r); err != nil {
		return err
	}
	if f.config != nil {
		return errors.New("VM already created")
	}
	dir := strings.TrimPrefix(r.SourceURL, "file://")
	config, err := os.ReadFile(filepath.Join(dir, configName))
	if err != nil {
		return err
	}
	c, err := parseFakeConfig(config)
	if err != nil {
		return err
	}
	if c.Payload.Initramfs != "" {
		return fmt.Errorf("initramfs is %q", c.Payload.Initramfs)
	}
	if len(c.Net) != len(r.NetFDs) || len(c.Net) != len(files) {
		return fmt.Errorf("%d cards, %d announced, %d descriptors", len(c.Net), len(r.NetFDs), len(files))
	}
	for i, n := range c.Net {
		if len(n.FDs) != 1 || r.NetFDs[i] != (restoredNet{n.ID, 1}) {
			return fmt.Errorf("card %+v is given %+v", n, r.NetFDs[i])
		}
	}
	f.files = append(f.files, files...)
	data, err := os.ReadFile(filepath.Join(dir, stateName))
	if err != nil {
		return err
	}
	state, err := parseFakeState(data)
	if err != nil {
		return err
	}
	if len(state.Ranges.Data) != 0 {
		return fmt.Errorf("RAM is to be read: %v", state.Ranges.Data)
	}
	if state.Big != bigNumber {
		return fmt.Errorf("a number became %d", state.Big)
	}
	if err := f.openConsole(c); err != nil {
		return err
	}
	if err := f.openDevices(); err != nil {
		return err
	}
	f.state = "Paused"
	f.event("vm", "restored")
	if r.Resume {
		f.state = "Running"
	}
	return nil
}

// bigNumber does not survive being read as a float.
const bigNumber = 1<<64 - 3

type fakeState struct {
	Ranges struct {
		Data []json.RawMessage `json:"data"`
	} `json:"memory_ranges"`
	Big uint64 `json:"start_of_device_area"`
}

func parseFakeState(data []byte) (s fakeState, err error) {
	var top struct {
		Snapshots map[string]struct {
			Data struct{ State string } `json:"snapshot_data"`
		}
	}
	if err := json.Unmarshal(data, &top); err != nil {
		return s, err
	}
	return s, json.Unmarshal([]byte(top.Snapshots["memory-manager"].Data.State), &s)
}

// fakeClockFlags are TSC_STABLE and REALTIME.
const fakeClockFlags = "6"

// fakeStateJSON is a state.json of a machine with these devices.
func fakeStateJSON(cpus int, ids []string, ram int64) []byte {
	type object = map[string]any
	section := func(state string, in object) object {
		return object{"snapshots": in, "snapshot_data": object{"state": state}}
	}
	number := strconv.FormatUint(bigNumber, 10)
	list := func(ids []string) object {
		o := object{}
		for _, id := range ids {
			o[id] = section(`{"id":"`+id+`","msr":`+number+`}`, object{})
		}
		return o
	}
	var vcpus []string
	for i := range cpus {
		vcpus = append(vcpus, strconv.Itoa(i))
	}
	data, err := json.Marshal(section(`{"clock":{"Kvm":[1,2,3,4,5,6,7,8,`+fakeClockFlags+`,0,0,0,255,9]},"common_cpuid":[`+number+`]}`, object{
		"cpu-manager":    object{"snapshots": list(vcpus), "snapshot_data": nil},
		"device-manager": section(`{"device_tree":{}}`, list(ids)),
		"memory-manager": section(fmt.Sprintf(`{"memory_ranges":{"data":[{"gpa":0,"length":%d}],"other":%s},"start_of_device_area":%s}`, ram, number, number), object{}),
	}))
	if err != nil {
		panic(err)
	}
	return data
}

// snapshot writes files in cloud-hypervisor's order.
func (f *fakeVMM) snapshot(dir string) error {
	c := f.config
	h := vmm.Shape{}
	for _, d := range c.Disks {
		h.Disks = append(h.Disks, vmm.DiskShape{ID: d.ID})
	}
	if _, ok := c.raw["net"]; ok {
		h.NIC = &vmm.NICShape{ID: "net0"}
	}
	ids := slices.DeleteFunc(deviceIDs(h), func(id string) bool { return id == f.order("lack", "") })
	ram := filepath.Join(dir, ramName)
	refused := func() error {
		if _, err := os.Stat(ram); err == nil && !f.told("ramnever") {
			return fmt.Errorf("Cannot send VM snapshot: Error creating memory snapshot file %q: File exists (os error 17)", ram)
		}
		return nil
	}
	if f.told("ramfirst") {
		if err := refused(); err != nil {
			return err
		}
	}
	config, err := json.Marshal(c.raw)
	if err != nil {
		return err
	}
	state := fakeStateJSON(f.cpus(), ids, int64(len(f.ram)))
	if f.told("cut") && refused() != nil {
		state = state[:len(state)/2]
	}
	for name, data := range map[string][]byte{configName: config, stateName: state} {
		out, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		if err != nil {
			return err
		}
		if _, err := out.Write(data); err != nil {
			return err
		}
		out.Close()
	}
	if err := refused(); err != nil {
		return err
	}
	return os.WriteFile(ram, f.ram, 0o600)
}

func (f *fakeVMM) cpus() int {
	var c struct {
		Boot int `json:"boot_vcpus"`
	}
	json.Unmarshal(f.config.raw["cpus"], &c)
	return c.Boot
}

// count is the guest.
func (f *fakeVMM) count() error {
	for ; ; time.Sleep(10 * time.Millisecond) {
		if end, err := f.step(); end || err != nil {
			return err
		}
		// What a killed test leaves ends by itself when its files are removed.
		var st unix.Stat_t
		if err := unix.Stat(ownDir(f.runDir), &st); err != nil || st.Nlink == 0 {
			return err
		}
	}
}

func (f *fakeVMM) step() (end bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state != "Running" {
		return false, nil
	}
	mem := counter.Memory(f.ram[:counterBytes])
	mem.Step()
	if f.disk != nil {
		if _, err := f.disk.WriteAt(binary.LittleEndian.AppendUint64(nil, mem.Tick()), 0); err != nil {
			return true, err
		}
	}
	line := mem.Report()
	_, err1 := os.Stdout.WriteString(line)
	_, err2 := f.console.WriteString(line)
	if f.again > 0 && mem.Tick() >= f.again {
		f.event("vm", "rebooting")
		if err := f.openConsole(f.config); err != nil {
			return true, fmt.Errorf("Error rebooting VM: %w", err)
		}
		f.event("vm", "rebooted")
		f.again += 2
	}
	return f.last > 0 && mem.Tick() >= f.last, errors.Join(err1, err2)
}
