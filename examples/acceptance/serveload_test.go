package acceptance

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// resident is the memory of the server in bytes.
func (s *server) resident(t testing.TB) int64 {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(data)
	if m == nil {
		t.Fatal("no VmRSS")
	}
	n, err := strconv.ParseInt(string(m[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n << 10
}

// TestMuchOutputToASlowReader: a gigabyte passes through, at its reader's speed,
// and none of it stays. An emulated guest would need half an hour for it, and
// writes what is still more than may stay anywhere.
func TestMuchOutputToASlowReader(t *testing.T) {
	r := shared(t)
	s := r.serve(t)
	name := r.runSmall(t)
	defer r.ok(t, "rm", "-f", name)
	s.call(t, 200, "POST", "/v1/sandboxes/"+name+"/exec", `{"args":["true"]}`)
	before := s.resident(t)
	size := int64(1 << 30)
	if !strings.Contains(s.call(t, 200, "GET", "/v1/sandboxes/"+name, ""), `"accel":"kvm"`) {
		size = 96 << 20
	}
	ctx, cancel := context.WithTimeout(context.Background(), within(10*time.Minute))
	defer cancel()
	c, _, err := websocket.Dial(ctx, s.url+"/v1/sandboxes/"+name+"/exec", &websocket.DialOptions{Subprotocols: []string{"sietch.exec.v1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	if err := c.Write(ctx, websocket.MessageText, fmt.Appendf(nil, `{"args":["head","-c","%d","/dev/zero"]}`, size)); err != nil {
		t.Fatal(err)
	}
	var got, most int64
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
		if n%256 == 0 {
			if n < 2048 {
				time.Sleep(200 * time.Millisecond) // what comes meanwhile has to wait
			}
			most = max(most, s.resident(t))
		}
	}
	if got != size {
		t.Errorf("got %d bytes, want %d", got, size)
	}
	if most > before+32<<20 {
		t.Errorf("the server grew from %d to %d MiB", before>>20, most>>20)
	}
}

// TestManyExecsAtOnce: two hundred commands side by side, several times, leave
// nothing behind in the server.
func TestManyExecsAtOnce(t *testing.T) {
	r := shared(t)
	s := r.serve(t)
	names := []string{r.runSmall(t), r.runSmall(t)}
	defer func() { r.ok(t, append([]string{"rm", "-f"}, names...)...) }()
	round := func() {
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
	}
	round()
	after := s.resident(t)
	for range 3 {
		round()
	}
	if most := s.resident(t); most > after+32<<20 {
		t.Errorf("the server grew from %d to %d MiB", after>>20, most>>20)
	}
}
