package guestmem

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/runtime/testlane"
)

// The tests look into a process that stands in for a VMM: this test binary,
// started again, maps a file privately and touches pages on command.

const standInEnv = "SIETCH_GUESTMEM_STAND_IN"

func TestMain(m *testing.M) {
	if file := os.Getenv(standInEnv); file != "" {
		if err := standIn(file); err != nil {
			fmt.Fprintln(os.Stderr, "stand-in:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// standIn serves commands of the form "VERB FIRST COUNT SEED" from standard
// input and answers each with a line.
func standIn(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err != nil {
		return err
	}
	size := st.Size()
	// Two pieces with something else between them, as a machine with a PCI hole
	// has, but in an order that is not the file's.
	half := size / 2 &^ (PageBytes - 1)
	upper, err := unix.Mmap(int(f.Fd()), half, int(size-half), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	if err != nil {
		return err
	}
	lower, err := unix.Mmap(int(f.Fd()), 0, int(half), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	if err != nil {
		return err
	}
	page := func(n int64) []byte {
		at, mem := n*PageBytes, lower
		if at >= half {
			at, mem = at-half, upper
		}
		return mem[at : at+PageBytes]
	}
	var spinning atomic.Bool
	var rounds atomic.Int64
	spinDone := make(chan struct{})
	signals := make(chan os.Signal, 64)
	signal.Notify(signals, syscall.SIGUSR1)
	var got atomic.Int64
	go func() {
		for range signals {
			got.Add(1)
		}
	}()

	fmt.Println("ready")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var verb string
		var first, count, seed int64
		if _, err := fmt.Sscan(in.Text(), &verb, &first, &count, &seed); err != nil {
			return err
		}
		answer := int64(0)
		switch verb {
		case "write": // one word in each page
			for n := first; n < first+count; n++ {
				binary.LittleEndian.PutUint64(page(n)[(n*8)%PageBytes:], uint64(seed+n))
			}
		case "zero":
			for n := first; n < first+count; n++ {
				clear(page(n))
			}
		case "read":
			for n := first; n < first+count; n++ {
				answer += int64(page(n)[0])
			}
		case "discard":
			for n := first; n < first+count; n++ {
				if err := unix.Madvise(page(n), unix.MADV_DONTNEED); err != nil {
					return err
				}
			}
		case "spin": // write words at random until "halt"
			spinning.Store(true)
			spinDone = make(chan struct{})
			go func() {
				defer close(spinDone)
				r := rand.New(rand.NewPCG(uint64(seed), 1))
				for spinning.Load() {
					n := first + r.Int64N(count)
					binary.LittleEndian.PutUint64(page(n)[r.IntN(PageBytes/8)*8:], r.Uint64())
					rounds.Add(1)
				}
			}()
			for before := rounds.Load(); rounds.Load() < before+1000; {
				time.Sleep(10 * time.Microsecond)
			}
		case "halt":
			spinning.Store(false)
			<-spinDone
			answer = rounds.Load()
		case "signals":
			for deadline := time.Now().Add(5 * time.Second); got.Load() < count && time.Now().Before(deadline); {
				time.Sleep(time.Millisecond)
			}
			answer = got.Load()
		default:
			return fmt.Errorf("unknown verb %q", verb)
		}
		fmt.Println(answer)
	}
	return in.Err()
}

// process is a running stand-in.
type process struct {
	t      testing.TB
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	target Target
}

// startStandIn starts a stand-in over a file of the given pages, half of them
// filled, the rest a hole.
func startStandIn(t testing.TB, pages int64) *process {
	t.Helper()
	testlane.Need(t, testlane.Root)
	file := filepath.Join(t.TempDir(), "memory file")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(pages * PageBytes); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, PageBytes)
	for n := int64(0); n < min(pages, 4096); n += 2 {
		binary.LittleEndian.PutUint64(buf, uint64(n)*2654435761+1)
		if _, err := f.WriteAt(buf, n*PageBytes); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), standInEnv+"="+file)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: cmd, in: in, out: bufio.NewReader(out),
		target: Target{PID: cmd.Process.Pid, MemoryFile: file, SizeBytes: pages * PageBytes}}
	t.Cleanup(func() { p.kill() })
	if line := p.line(); line != "ready" {
		t.Fatalf("stand-in says %q, want ready", line)
	}
	return p
}

func (p *process) kill() {
	p.cmd.Process.Kill()
	p.cmd.Wait()
}

func (p *process) line() string {
	p.t.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil {
		p.t.Fatalf("read answer of stand-in: %v", err)
	}
	return strings.TrimSpace(line)
}

func (p *process) do(verb string, first, count, seed int64) int64 {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.in, verb, first, count, seed); err != nil {
		p.t.Fatalf("tell stand-in: %v", err)
	}
	var answer int64
	line := p.line()
	if _, err := fmt.Sscan(line, &answer); err != nil {
		p.t.Fatalf("stand-in answers %q to %s", line, verb)
	}
	return answer
}

func (p *process) open() *Memory {
	p.t.Helper()
	m, err := Open(p.target)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { m.Close() })
	return m
}

// contents reads all of the stand-in's memory, past this package.
func (p *process) contents(m *Memory) []byte {
	p.t.Helper()
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", p.target.PID))
	if err != nil {
		p.t.Fatal(err)
	}
	defer mem.Close()
	all := make([]byte, p.target.SizeBytes)
	for _, r := range m.regions {
		if _, err := mem.ReadAt(all[r.page*PageBytes:][:r.bytes()], int64(r.addr)); err != nil {
			p.t.Fatal(err)
		}
	}
	return all
}

func collect(t testing.TB, tr Tracker) *PageSet {
	t.Helper()
	set, err := tr.Collect(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// pagesOf makes a set of (first, count) pairs.
func pagesOf(runs ...int64) *PageSet {
	s := new(PageSet)
	for i := 0; i < len(runs); i += 2 {
		s.AddRange(runs[i], runs[i+1])
	}
	return s
}

func (s *PageSet) String() string {
	var b strings.Builder
	for first, count := range s.Runs() {
		fmt.Fprintf(&b, " %d+%d", first, count)
	}
	return "{" + strings.TrimSpace(b.String()) + "}"
}
