package acceptance

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/sietch-dev/sietch/runtime/testlane"
)

// resident is the memory of the server in bytes.
func (s *server) resident(t testing.TB) int64 {
	t.Helper()
	n, err := residentOf(s.cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func residentOf(pid int) (int64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	m := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(data)
	if m == nil {
		return 0, fmt.Errorf("no VmRSS of process %d", pid)
	}
	n, err := strconv.ParseInt(string(m[1]), 10, 64)
	return n << 10, err
}

// memory is what the server uses while something goes on.
type memory struct {
	s    *server
	stop chan struct{}
	most chan int64
}

// sample looks ten times a second.
func (s *server) sample(t testing.TB) *memory {
	t.Helper()
	m := &memory{s, make(chan struct{}), make(chan int64, 1)}
	first := s.resident(t)
	go func() {
		most := first
		for {
			select {
			case <-m.stop:
				m.most <- most
				return
			case <-time.After(100 * time.Millisecond):
				if n, err := residentOf(s.cmd.Process.Pid); err == nil {
					most = max(most, n)
				}
			}
		}
	}()
	return m
}

func (m *memory) end() int64 { close(m.stop); return <-m.most }

// TestMuchOutputToASlowReader: a gigabyte passes through, at its reader's speed,
// and none of it stays; while the reader rests, the writer in the guest does. An
// emulated guest takes minutes for a gigabyte, so that there, unless lane load is
// asked for, it writes what is still more than may stay anywhere.
func TestMuchOutputToASlowReader(t *testing.T) {
	r := apart(t)
	s := r.serve(t)
	name := r.runSmall(t)
	defer r.ok(t, "rm", "-f", name)
	s.call(t, 200, "POST", "/v1/sandboxes/"+name+"/exec", `{"args":["true"]}`)
	size := int64(1 << 30)
	if !strings.Contains(s.call(t, 200, "GET", "/v1/sandboxes/"+name, ""), `"accel":"kvm"`) && !testlane.Has(testlane.Load) {
		size = 64 << 20
	}
	ctx, cancel := context.WithTimeout(context.Background(), within(20*time.Minute))
	defer cancel()
	before := s.resident(t)
	watched := s.sample(t)
	began := time.Now()
	c, _, err := websocket.Dial(ctx, s.url+"/v1/sandboxes/"+name+"/exec", &websocket.DialOptions{Subprotocols: []string{"sietch.exec.v1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	// The shell's pid is the writer's after exec.
	line := fmt.Sprintf("echo $$ > /root/writer; exec head -c %d /dev/zero", size)
	if err := c.Write(ctx, websocket.MessageText, fmt.Appendf(nil, `{"args":["sh","-c",%q]}`, line)); err != nil {
		t.Fatal(err)
	}
	// written is what the command has handed on so far.
	written := func() int64 {
		out := r.in(t, name, "sed -n 's/^wchar: //p' /proc/$(cat /root/writer)/io")
		n, err := strconv.ParseInt(out, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	var got int64
	for n := 0; ; n++ {
		kind, data, err := c.Read(ctx)
		if err != nil {
			t.Fatalf("after %d bytes: %v\n%s", got, err, s.log)
		}
		if kind == websocket.MessageText {
			if string(data) != `{"type":"started"}` {
				if string(data) != `{"type":"exit","exit_code":0}` {
					t.Errorf("got end %s", data)
				}
				break
			}
			continue
		}
		got += int64(len(data) - 1)
		if n == 100 {
			// Until what is on the way is full; then nothing moves.
			var held int64
			for now := written(); now != held && now < size; now = written() {
				held = now
				time.Sleep(within(2 * time.Second))
			}
			t.Logf("the reader rests at %d KiB, the writer at %d KiB", got>>10, held>>10)
			if held >= got+32<<20 {
				t.Errorf("%d MiB were written ahead of the reader", (held-got)>>20)
			}
		}
	}
	most := watched.end()
	t.Logf("%d MiB in %s; the server had %d MiB before, and %d at most", got>>20, time.Since(began).Round(time.Second), before>>20, most>>20)
	if got != size {
		t.Errorf("got %d bytes, want %d", got, size)
	}
	if most > before+32<<20 {
		t.Errorf("the server grew from %d to %d MiB", before>>20, most>>20)
	}
}

// TestManyExecsAtOnce: two hundred commands side by side in ten machines, again
// and again, take no more of the server the fourth time than the first.
func TestManyExecsAtOnce(t *testing.T) {
	r := shared(t)
	s := r.serve(t)
	source := fresh("box")
	r.ok(t, "run", "--name", source, "--memory", "128M", "--disk", "64M", "small")
	names := []string{source}
	t.Cleanup(func() { r.remove(t, names...) })
	for _, f := range r.fork(t, 9, source) {
		names = append(names, f.Name)
	}
	processes := func() (all []string) {
		for _, name := range names {
			all = append(all, r.in(t, name, "ls -d /proc/[0-9]* | wc -l"))
		}
		return all
	}
	before := processes()
	round := func() (most int64) {
		watched := s.sample(t)
		defer func() { most = watched.end() }()
		var wg sync.WaitGroup
		for i := range 200 {
			wg.Go(func() {
				want := fmt.Sprintf(`"stdout":"%d\n"`, i)
				status, a, err := s.ask("POST", "/v1/sandboxes/"+names[i%len(names)]+"/exec", fmt.Sprintf(`{"args":["echo","%d"]}`, i))
				if err != nil || status != 200 || !strings.Contains(a, want) {
					t.Errorf("got %d %s, %v, want %s", status, a, err, want)
				}
			})
		}
		wg.Wait()
		return most
	}
	began := time.Now()
	var most []int64
	for range 4 {
		most = append(most, round())
	}
	t.Logf("4 × 200 commands in %d machines in %s; the server had at most %d, %d, %d and %d MiB", len(names),
		time.Since(began).Round(time.Second), most[0]>>20, most[1]>>20, most[2]>>20, most[3]>>20)
	if after := processes(); !slices.Equal(after, before) {
		t.Errorf("processes in the machines: got %v, before it were %v", after, before)
	}
	if float64(most[3]) > 1.25*float64(most[0]) {
		t.Errorf("the server grew from %d to %d MiB", most[0]>>20, most[3]>>20)
	}
}
