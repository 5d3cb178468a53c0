package vmmtest

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/runtime/vmm"
	"github.com/sietch-dev/sietch/runtime/vmm/vmmtest/counter"
)

// The process of a fake machine takes the place of the test binary it is part
// of before any test or main function is run.
func init() {
	if os.Getenv(fakeEnv) == "" || len(os.Args) != 2 {
		return
	}
	if err := runFake(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// fakeProcess is a running fake machine, seen from inside.
type fakeProcess struct {
	told          string
	mem           counter.Memory
	disk          *os.File // nil without a writable disk
	console, main *os.File
	last          uint64 // tick to power off at, 0: none

	mu     sync.Mutex
	paused bool
}

func runFake(told string) error {
	data, err := os.ReadFile(told)
	if err != nil {
		return err
	}
	var start fakeStart
	if err := json.Unmarshal(data, &start); err != nil {
		return err
	}
	p, err := newFakeProcess(start)
	if err != nil {
		return err
	}
	p.told = told
	listener, err := net.FileListener(os.NewFile(3, fakeSocket))
	if err != nil {
		return err
	}
	ended := make(chan error, 2)
	go func() { ended <- p.count() }()
	go func() { ended <- p.serve(listener) }()
	return <-ended
}

func newFakeProcess(start fakeStart) (*fakeProcess, error) {
	s := start.Spec
	f, err := os.Open(s.MemoryFile)
	if err != nil {
		return nil, err
	}
	ram, err := unix.Mmap(int(f.Fd()), 0, int(s.MemoryBytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("map memory: %w", err)
	}
	if int64(start.CounterBytes) > s.MemoryBytes {
		return nil, fmt.Errorf("counter of %d bytes does not fit into memory", start.CounterBytes)
	}
	p := &fakeProcess{mem: ram[:start.CounterBytes], paused: s.Restore != nil}
	for _, d := range s.Disks {
		if !d.ReadOnly && p.disk == nil {
			if p.disk, err = os.OpenFile(d.Path, os.O_RDWR, 0); err != nil {
				return nil, err
			}
		}
	}
	for to, path := range map[**os.File]string{&p.console: s.ConsoleLog, &p.main: s.MainLog} {
		if *to, err = os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
			return nil, err
		}
	}
	if s.Restore != nil {
		if _, err := os.Stat(filepath.Join(s.Restore.Dir, fakeState)); err != nil {
			return nil, fmt.Errorf("load device state: %w", err)
		}
	}
	for _, word := range strings.Fields(s.Cmdline) {
		fmt.Sscanf(word, "vmmtest.ticks=%d", &p.last)
	}
	return p, nil
}

// count is the guest.
func (p *fakeProcess) count() error {
	for ; ; time.Sleep(10 * time.Millisecond) {
		end, err := p.step()
		if end || err != nil {
			return err
		}
		// What a killed test leaves ends by itself when its files are removed.
		if _, err := os.Stat(p.told); err != nil {
			return err
		}
	}
}

func (p *fakeProcess) step() (end bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paused {
		return false, nil
	}
	p.mem.Step()
	if p.disk != nil {
		if _, err := p.disk.WriteAt(binary.LittleEndian.AppendUint64(nil, p.mem.Tick()), 0); err != nil {
			return true, err
		}
	}
	line := p.mem.Report()
	_, err1 := p.main.WriteString(line)
	_, err2 := p.console.WriteString(line)
	return p.last > 0 && p.mem.Tick() >= p.last, errors.Join(err1, err2)
}

// serve answers one request a connection, one after the other.
func (p *fakeProcess) serve(l net.Listener) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		var r fakeRequest
		if json.NewDecoder(conn).Decode(&r) == nil {
			if r.Do == "power off" {
				return nil
			}
			_ = json.NewEncoder(conn).Encode(p.answer(r)) // the asker may have gone
		}
		conn.Close()
	}
}

func (p *fakeProcess) answer(r fakeRequest) fakeAnswer {
	p.mu.Lock()
	defer p.mu.Unlock()
	var err error
	switch r.Do {
	case "status":
	case "pause":
		p.paused = true
	case "resume":
		p.paused = false
	case "save":
		if !p.paused {
			return fakeAnswer{IsState: true, Error: vmm.ErrState.Error()}
		}
		// All of this machine's state is in its memory.
		err = os.WriteFile(filepath.Join(r.Dir, fakeState), []byte("no devices\n"), 0o600)
	default:
		err = fmt.Errorf("unknown request %q", r.Do)
	}
	a := fakeAnswer{Paused: p.paused}
	if err != nil {
		a.Error = err.Error()
	}
	return a
}
