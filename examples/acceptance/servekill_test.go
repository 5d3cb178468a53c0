package acceptance

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// longCall is a request that a server may die under.
type longCall struct {
	path, media string
	body        []byte
	key         string
}

// send makes the call. An answer that breaks off is an error, whatever its status.
func (s *server) send(c longCall) (status int, answer string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, "POST", s.url+c.path, bytes.NewReader(c.body))
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Content-Type", c.media)
	r.Header.Set("Idempotency-Key", c.key)
	// Not one that an earlier server of this address has closed.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	a, err := client.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer a.Body.Close()
	data, err := io.ReadAll(a.Body)
	return a.StatusCode, string(data), err
}

// TestKillServer is hazard 9 for the server: it dies in the middle of a long call.
// The client hears of it at once; the next server finds whole machines and whole
// history, or nothing; and the call, sent again with its key, has been done once
// or is said to have been cut off.
func TestKillServer(t *testing.T) {
	together(t)
	r := private(t, filepath.Join(area, "servekill"))
	points := max(2, killPoints(t)/2)
	source := r.runSmall(t)
	nonce := r.probe(t, source, "set", "source")
	base := r.commit(t, source, "base")

	asJSON := func(path string, v any) longCall {
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return longCall{path: path, media: "application/json", body: data}
	}
	// named counts what a call was to make, by a name of its own.
	named := func(name string) func(s *server) int {
		return func(s *server) int {
			return strings.Count(s.call(t, 200, "GET", "/v1/sandboxes?all=true", ""), `"name":"`+name)
		}
	}
	heads := func(s *server) string {
		var log []commitInfo
		if err := json.Unmarshal([]byte(s.call(t, 200, "GET", "/v1/commits?n=0", "")), &log); err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, c := range log {
			all = append(all, c.Message)
		}
		return strings.Join(all, "\n")
	}
	calls := []struct {
		name string
		// one is a call, how much there is of what it does, and how much it makes.
		one func(tag string) (c longCall, there func(*server) int, makes int)
	}{
		{"exec", func(tag string) (longCall, func(*server) int, int) {
			line := fmt.Sprintf("sleep 1; echo once >> /root/%s; sleep 1", tag)
			return asJSON("/v1/sandboxes/"+source+"/exec", map[string]any{"args": []string{"sh", "-c", line}}), func(*server) int {
				return strings.Count(r.in(t, source, "cat /root/"+tag+" 2>/dev/null || :"), "once")
			}, 1
		}},
		{"run", func(tag string) (longCall, func(*server) int, int) {
			return asJSON("/v1/sandboxes", map[string]any{"from": "small", "name": tag, "memory_bytes": 128 << 20, "disk_bytes": 64 << 20}), named(tag), 1
		}},
		{"commit", func(tag string) (longCall, func(*server) int, int) {
			return asJSON("/v1/sandboxes/"+source+"/commits", map[string]any{"message": tag}), func(s *server) int {
				return strings.Count(heads(s), tag)
			}, 1
		}},
		{"fork", func(tag string) (longCall, func(*server) int, int) {
			return asJSON("/v1/forks", map[string]any{"from": base.ID, "n": 2, "prefix": tag}), named(tag + "-"), 2
		}},
		{"checkout", func(tag string) (longCall, func(*server) int, int) {
			c := asJSON("/v1/sandboxes/"+source+"/checkout", map[string]any{"ref": base.ID, "new_branch": tag})
			return c, func(s *server) int {
				return strings.Count(s.call(t, 200, "GET", "/v1/branches", ""), `"name":"`+tag+`"`)
			}, 1
		}},
		{"build", func(tag string) (longCall, func(*server) int, int) {
			c := longCall{path: "/v1/builds?name=" + tag, media: "application/x-tar", body: contextOf(t, tag)}
			return c, func(s *server) int {
				return strings.Count(s.call(t, 200, "GET", "/v1/images", ""), `"name":"`+tag+`"`)
			}, 1
		}},
	}
	for _, v := range calls {
		t.Run(v.name, func(t *testing.T) {
			// Once to its end, to know how long it takes.
			s := r.serve(t)
			tag := fresh("k")
			c, there, makes := v.one(tag)
			c.key = tag
			began := time.Now()
			status, answer, err := s.send(c)
			took := time.Since(began)
			if err != nil || status > 299 || there(s) != makes {
				t.Fatalf("got %d %s, %v, and %d made; want %d\nserver:\n%s", status, answer, err, there(s), makes, s.log)
			}
			s.stop(t, syscall.SIGKILL)
			s = r.serve(t)
			if st, again, err := s.send(c); err != nil || st != status || again != answer {
				t.Errorf("the next server answers to the same key: %d %.300s, %v, want %.300s", st, again, err, answer)
			}
			for i := 1; i <= points; i++ {
				tag := fresh("k")
				c, there, makes := v.one(tag)
				c.key = tag
				cut := took * time.Duration(i) / time.Duration(points+1)
				ended := make(chan error, 1)
				go func() {
					status, answer, err := s.send(c)
					if err == nil {
						err = fmt.Errorf("answered: %d %.200s", status, answer)
					}
					ended <- err
				}()
				time.Sleep(cut)
				s.stop(t, syscall.SIGKILL)
				select {
				case err := <-ended:
					t.Logf("cut off after %s: %v", cut.Round(time.Millisecond), err)
				case <-time.After(within(5 * time.Second)):
					t.Fatal("the client of a server that died waits on")
				}

				s = r.serve(t)
				before := there(s)
				status, answer, err := s.send(c)
				after := there(s)
				t.Logf("there: %d; the same key: %d %.200s, %v; there: %d", before, status, answer, err, after)
				switch {
				case err != nil:
					t.Errorf("the same key: %v", err)
				case status < 300 && after != makes:
					t.Errorf("the same key is answered with %d and %d were made, want %d", status, after, makes)
				case status < 300:
				case status != 409 || !strings.Contains(answer, `"interrupted"`):
					t.Errorf("the same key: got %d %s, want success or that the call was interrupted", status, answer)
				case after != before || after > makes:
					t.Errorf("refused with %s, but there were %d and are %d", answer, before, after)
				}
				r.whole(t, source, nonce)
				r.nothingHalf(t)
			}
			s.stop(t, syscall.SIGTERM)
		})
	}
	r.ok(t, "gc")
	r.ok(t, "fsck")
	r.remove(t, source)
}

// contextOf is a build context whose content no other has.
func contextOf(t *testing.T, tag string) []byte {
	t.Helper()
	noise := make([]byte, 4<<20)
	rng := rand.NewChaCha8([32]byte([]byte(fmt.Sprintf("%-32s", tag))))
	rng.Read(noise)
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for name, data := range map[string][]byte{"Dockerfile": []byte("FROM scratch\nCOPY noise /" + tag + "\n"), "noise": noise} {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data))}); err != nil {
			t.Fatal(err)
		}
		w.Write(data)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// nothingHalf wants no directory of a sandbox that is not listed, and no scratch
// that nobody works in.
func (r *repo) nothingHalf(t *testing.T) {
	t.Helper()
	var left []string
	for end := time.Now().Add(within(20 * time.Second)); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		known := map[string]bool{}
		for _, s := range r.all(t) {
			known[s.ID] = true
		}
		left = nil
		for _, part := range []string{"sandboxes", "tmp"} {
			entries, err := os.ReadDir(filepath.Join(r.dir, part))
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				if e.IsDir() && !known[e.Name()] {
					left = append(left, part+"/"+e.Name())
				}
			}
		}
		if len(left) == 0 {
			return
		}
	}
	t.Errorf("left over: %v", left)
}
