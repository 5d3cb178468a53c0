package agent_test

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"hash"
	"hash/crc32"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	guest "github.com/sietch-dev/sietch/guestinit/agent"
	"github.com/sietch-dev/sietch/guestinit/proto"
	"github.com/sietch-dev/sietch/runtime/agent"
)

// paced is a reader's end that takes a while now and then.
type paced struct {
	hash  hash.Hash
	n     int64
	stall time.Duration
	every int64
}

func (p *paced) Write(b []byte) (int, error) {
	if (p.n+int64(len(b)))/p.every != p.n/p.every {
		time.Sleep(p.stall)
	}
	p.n += int64(len(b))
	p.hash.Write(b)
	return len(b), nil
}

// TestSlowReader has 1 GiB go to a reader that pauses, and watches the memory
// of both sides.
func TestSlowReader(t *testing.T) {
	if testing.Short() {
		t.Skip("moves 1 GiB")
	}
	p := startProcess(t)
	const size = 1 << 30
	block := make([]byte, 8<<20)
	rand.Read(block)
	file := filepath.Join(t.TempDir(), "block")
	if err := os.WriteFile(file, block, 0o600); err != nil {
		t.Fatal(err)
	}
	guestBefore, hereBefore := resident(t, p.pid), resident(t, os.Getpid())
	guestPeak, herePeak := 0, 0
	done := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(50 * time.Millisecond):
				guestPeak, herePeak = max(guestPeak, resident(t, p.pid)), max(herePeak, resident(t, os.Getpid()))
			}
		}
	})
	out := &paced{hash: crc32.New(crc32.MakeTable(crc32.Castagnoli)), stall: 20 * time.Millisecond, every: 16 << 20}
	start := time.Now()
	st, err := p.Exec(testContext(t), sh("for i in $(seq 128); do cat "+file+"; done"), agent.IO{Stdout: out})
	elapsed := time.Since(start)
	close(done)
	watch.Wait()
	if err != nil || st.Code != 0 {
		t.Fatalf("%+v, %v", st, err)
	}
	want := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	for range size / len(block) {
		want.Write(block)
	}
	if out.n != size || !bytes.Equal(out.hash.Sum(nil), want.Sum(nil)) {
		t.Errorf("got %d bytes, or other ones than were sent", out.n)
	}
	t.Logf("1 GiB in %v; agent %d → %d KiB, client %d → %d KiB", elapsed.Round(time.Millisecond), guestBefore, guestPeak, hereBefore, herePeak)
	const limit = 8 << 10
	if guestPeak-guestBefore > limit || herePeak-hereBefore > limit {
		t.Errorf("memory grew by %d KiB in the agent and %d KiB here, allowed %d", guestPeak-guestBefore, herePeak-hereBefore, limit)
	}
}

// TestStoppedReader leaves an output unread: the process must block, the agent
// must not buffer, and both must go on later.
func TestStoppedReader(t *testing.T) {
	p := startProcess(t)
	before := resident(t, p.pid)
	stop := make(chan struct{})
	first := true
	var n int64
	out := writerFunc(func(b []byte) (int, error) {
		if first {
			first = false
			<-stop
		}
		n += int64(len(b))
		return len(b), nil
	})
	end := make(chan error, 1)
	go func() {
		_, err := p.Exec(testContext(t), sh("head -c 100000000 /dev/zero"), agent.IO{Stdout: out})
		end <- err
	}()
	time.Sleep(500 * time.Millisecond)
	if grown := resident(t, p.pid) - before; grown > 8<<10 {
		t.Errorf("agent grew by %d KiB", grown)
	}
	close(stop)
	if err := <-end; err != nil || n != 100000000 {
		t.Errorf("got %d bytes, %v", n, err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// resident is a process's resident set without file pages, in KiB.
func resident(t testing.TB, pid int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Error(err)
		return 0
	}
	_, rest, _ := strings.Cut(string(b), "RssAnon:")
	n, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Error(err)
	}
	return n
}

// TestManyExecs: 1000 execs leave nothing behind, on either side.
func TestManyExecs(t *testing.T) {
	p := startProcess(t)
	one := func(i int) {
		req := sh("cat >/dev/null; echo $$")
		req.Stdin = true
		req.TTY = i%10 == 0
		o, _, st := run(t, p.Client, req, "x\n")
		if st.Code != 0 || o == "" {
			t.Fatalf("exec %d: %q, %+v", i, o, st)
		}
	}
	for i := range 20 {
		one(i)
	}
	p.CloseIdle()
	noLeak(t)
	time.Sleep(50 * time.Millisecond)
	files, threads, memory := openFiles(t, p.pid), threadCount(t, p.pid), resident(t, p.pid)
	start := time.Now()
	for i := range 1000 {
		one(i)
	}
	t.Logf("1000 execs of a shell with cat in %v", time.Since(start).Round(time.Millisecond))
	p.CloseIdle()
	eventually(t, func() error {
		if n := openFiles(t, p.pid); n > files {
			return fmt.Errorf("agent has %d open files, %d before", n, files)
		}
		if kids := children(t, p.pid); len(kids) > 0 {
			return fmt.Errorf("agent has children %v", kids)
		}
		return nil
	})
	if n := threadCount(t, p.pid); n > threads+4 {
		t.Errorf("agent has %d threads, %d before", n, threads)
	}
	if n := resident(t, p.pid); n > memory+24<<10 { // a lost 64 KiB buffer each would be 64 MiB
		t.Errorf("agent has %d KiB, %d before", n, memory)
	}
}

func threadCount(t testing.TB, pid int) int {
	names, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

// children lists a process's children, zombies too.
func children(t testing.TB, pid int) (kids []string) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, f := range tasks {
		b, _ := os.ReadFile(f)
		kids = append(kids, strings.Fields(string(b))...)
	}
	return kids
}

func TestManyAtOnce(t *testing.T) {
	noLeak(t)
	c, _ := startHere(t, guest.Options{})
	var group sync.WaitGroup
	for i := range 32 {
		group.Go(func() {
			var out bytes.Buffer
			req := proto.ExecRequest{Args: []string{"cat"}, Stdin: true}
			in := strings.Repeat(strconv.Itoa(i)+" ", 50000)
			if _, err := c.Exec(testContext(t), req, agent.IO{Stdin: strings.NewReader(in), Stdout: &out}); err != nil || out.String() != in {
				t.Errorf("exec %d: %d of %d bytes, %v", i, out.Len(), len(in), err)
			}
		})
	}
	group.Wait()
}
