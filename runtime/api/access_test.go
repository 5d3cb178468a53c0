package api

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sietch-dev/sietch/runtime"
)

// tokens makes a file with the tokens of the names.
func tokens(t *testing.T, wanted ...Token) (*Tokens, []string) {
	t.Helper()
	k, err := OpenTokens(filepath.Join(t.TempDir(), "tokens.json"))
	if err != nil {
		t.Fatal(err)
	}
	var secrets []string
	for _, w := range wanted {
		secret, _, err := k.Create(w)
		if err != nil {
			t.Fatal(err)
		}
		secrets = append(secrets, secret)
	}
	return k, secrets
}

func TestTokensAreNeeded(t *testing.T) {
	k, secrets := tokens(t, Token{Name: "one"}, Token{Name: "two"})
	l := newLab(t, func(o *Options) { o.Tokens = k })
	basic := func(password string) string {
		return "Basic " + base64.StdEncoding.EncodeToString([]byte("anybody:"+password))
	}
	tests := []struct {
		name, header, value string
		status              int
	}{
		{"none", "X-Nothing", "", 401},
		{"bearer", "Authorization", "Bearer " + secrets[0], 200},
		{"the other", "Authorization", "bearer " + secrets[1], 200},
		{"basic", "Authorization", basic(secrets[0]), 200},
		{"own header", "Sietch-Token", secrets[0], 200},
		{"wrong", "Authorization", "Bearer " + secrets[0] + "x", 401},
		{"cut off", "Authorization", "Bearer " + secrets[0][:20], 401},
		{"basic, wrong", "Authorization", basic("password"), 401},
		{"empty", "Authorization", "Bearer ", 401},
		{"as the user", "Authorization", "Basic " + base64.StdEncoding.EncodeToString([]byte(secrets[0]+":")), 401},
	}
	for _, tt := range tests {
		if a := l.do(t, "GET", "/v1/sandboxes", "", tt.header, tt.value); a.status != tt.status {
			t.Errorf("%s: got %d %s, want %d", tt.name, a.status, a.body, tt.status)
		} else if a.status == 401 && !strings.Contains(a.header.Get("WWW-Authenticate"), "Bearer") {
			t.Errorf("%s: no WWW-Authenticate", tt.name)
		}
	}
	for path, status := range map[string]int{"/healthz": 200, "/readyz": 200, "/v1/openapi.yaml": 200, "/metrics": 401, "/vms": 401, "/v1/sandboxes/box/proxy/80/": 401} {
		if a := l.do(t, "GET", path, ""); a.status != status {
			t.Errorf("%s without a token: got %d, want %d", path, a.status, status)
		}
	}
	if a := l.do(t, "GET", "/readyz", ""); strings.Contains(a.body, "sandboxes") {
		t.Errorf("readyz tells everybody what is here: %s", a.body)
	}
	// Revoked, it opens nothing, on the server that runs.
	if err := k.Remove("one"); err != nil {
		t.Fatal(err)
	}
	if a := l.do(t, "GET", "/v1/sandboxes", "", "Authorization", "Bearer "+secrets[0]); a.status != 401 {
		t.Errorf("a revoked token: got %d, want 401", a.status)
	}
}

func TestTokenFile(t *testing.T) {
	k, secrets := tokens(t, Token{Name: "one", Labels: map[string]string{"a": "b"}})
	data, err := os.ReadFile(k.path)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(data, []byte(secrets[0])) || bytes.Contains(data, []byte(strings.TrimPrefix(secrets[0], tokenPrefix))) {
		t.Errorf("the file holds the token itself: %s", data)
	}
	st, err := os.Stat(k.path)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("got mode %v, %v, want 0600", st.Mode(), err)
	}
	if _, _, err := k.Create(Token{Name: "one"}); err == nil {
		t.Error("two tokens may have one name")
	}
	if err := k.Remove("nobody"); err == nil {
		t.Error("removing a token that is not there is no error")
	}
	if err := os.Chmod(k.path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Find(secrets[0]); err == nil {
		t.Error("a file that others can read is used")
	}
	// Many at once lose nothing.
	os.Chmod(k.path, 0o600)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			other, err := OpenTokens(k.path)
			if err == nil {
				_, _, err = other.Create(Token{Name: fmt.Sprint("n", i)})
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if list, err := k.List(); err != nil || len(list) != 9 {
		t.Errorf("got %d tokens, %v, want 9", len(list), err)
	}
}

// TestLimitedTokens sees only what has its labels, whatever it asks for.
func TestLimitedTokens(t *testing.T) {
	k, secrets := tokens(t, Token{Name: "blue", Labels: map[string]string{"team": "blue"}})
	l := newLab(t, func(o *Options) { o.Tokens = k })
	l.add("mine", runtime.Running, map[string]string{"team": "blue", "x": "y"})
	l.add("red", runtime.Running, map[string]string{"team": "red"})
	auth := []string{"Authorization", "Bearer " + secrets[0]}
	if a := l.do(t, "GET", "/v1/sandboxes", "", auth...); !strings.Contains(a.body, `"mine"`) || strings.Contains(a.body, `"red"`) || strings.Contains(a.body, `"box"`) {
		t.Errorf("got list %s, want mine alone", a.body)
	}
	for _, tt := range routes {
		path, body := strings.ReplaceAll(tt.path, "/box", "/red"), strings.ReplaceAll(tt.body, `"box"`, `"red"`)
		path = strings.ReplaceAll(strings.ReplaceAll(path, "/lab/", "/red/"), "/old/", "/red/")
		if path == tt.path && body == tt.body {
			continue
		}
		a := l.do(t, tt.method, path, body, auth...)
		if a.status != 404 && a.status != 426 {
			t.Errorf("%s %s: got %d %s, want 404: it is not the token's", tt.method, path, a.status, a.body)
		}
	}
	for _, c := range []struct{ method, path, body string }{
		{"POST", "/v1/gc", ""}, {"GET", "/v1/fsck", ""}, {"GET", "/v1/du", ""}, {"GET", "/v1/events", ""}, {"GET", "/metrics", ""},
		{"POST", "/v1/builds", "tar"}, {"DELETE", "/v1/images/debian:bookworm", ""}, {"POST", "/v1/images/pull", `{"ref":"x"}`},
	} {
		if a := l.do(t, c.method, c.path, c.body, auth...); a.status != 403 {
			t.Errorf("%s %s: got %d %s, want 403", c.method, c.path, a.status, a.body)
		}
	}
	if a := l.do(t, "POST", "/v1/sandboxes", `{"from":"debian:bookworm","name":"made"}`, auth...); a.status != 201 || !strings.Contains(a.body, `"team":"blue"`) {
		t.Errorf("got %d %s, want a sandbox with the token's label", a.status, a.body)
	}
	if a := l.do(t, "POST", "/v1/sandboxes", `{"from":"debian:bookworm","name":"trick","labels":{"team":"red"}}`, auth...); !strings.Contains(a.body, `"team":"blue"`) {
		t.Errorf("got %s: a token can make what is not its own", a.body)
	}
	if a := l.do(t, "POST", "/v1/sandboxes", `{"from":"red"}`, auth...); a.status != 404 {
		t.Errorf("run from another's state: got %d %s, want 404", a.status, a.body)
	}
	if a := l.do(t, "POST", "/v1/sandboxes/mine/checkout", `{"ref":"red"}`, auth...); a.status != 404 {
		t.Errorf("checkout of another's state: got %d %s, want 404", a.status, a.body)
	}
	if a := l.do(t, "DELETE", "/v1/vms", "", auth...); a.status != 200 || len(l.called("Remove")) != 3 {
		t.Errorf("got %d, removed %s, want its own three", a.status, l.called("Remove"))
	}
}

func TestQuotas(t *testing.T) {
	k, secrets := tokens(t, Token{Name: "few", MaxSandboxes: 3}, Token{Name: "any"})
	l := newLab(t, func(o *Options) { o.Tokens, o.MaxSandboxes = k, 8 })
	arrived, goOn := make(chan struct{}, 16), make(chan struct{})
	var late sync.Once
	open := func() { late.Do(func() { close(goOn) }) }
	defer open()
	l.run = func(_ context.Context, _ runtime.RunRequest) error { arrived <- struct{}{}; <-goOn; return nil }
	few, anyone := []string{"Authorization", "Bearer " + secrets[0]}, []string{"Authorization", "Bearer " + secrets[1]}

	// Side by side: as many as there is room for come through.
	results := make(chan int, 6)
	for range 6 {
		go func() { results <- l.do(t, "POST", "/v1/sandboxes", `{"from":"debian:bookworm"}`, few...).status }()
	}
	for range 3 {
		if s := <-results; s != 429 {
			t.Errorf("got %d, want 429 for those beyond the quota", s)
		}
	}
	open()
	for range 3 {
		if s := <-results; s != 201 {
			t.Errorf("got %d, want 201 for those within", s)
		}
	}
	if a := l.do(t, "POST", "/v1/forks", `{"from":"box","n":3}`, anyone...); a.status != 429 || !strings.Contains(a.body, `"quota"`) {
		t.Errorf("9 of 8: got %d %s, want 429 quota", a.status, a.body)
	}
	if a := l.do(t, "POST", "/v1/forks", `{"from":"box","n":2}`, anyone...); a.status != 200 {
		t.Errorf("8 of 8: got %d %s, want 200", a.status, a.body)
	}
}

func TestRate(t *testing.T) {
	l := newLab(t, func(o *Options) { o.Rate, o.Burst = 0.01, 3 })
	for i := range 5 {
		want := 200
		if i >= 3 {
			want = 429
		}
		if a := l.do(t, "GET", "/healthz", ""); a.status != want {
			t.Errorf("request %d: got %d, want %d", i, a.status, want)
		} else if want == 429 && a.header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
	}
}

func TestHostNames(t *testing.T) {
	k, secrets := tokens(t, Token{Name: "one"})
	tests := []struct {
		host   string
		status int
	}{
		{"127.0.0.1:7000", 200}, {"localhost", 200}, {"LOCALHOST:1", 200}, {"[::1]:7000", 200}, {"127.9.9.9", 200},
		{"evil.example", 421}, {"127.0.0.1.evil.example", 421}, {"localhost.evil.example", 421}, {"10.0.0.1:7000", 421},
	}
	bare, secured := newLab(t, nil), newLab(t, func(o *Options) { o.Tokens = k })
	for _, tt := range tests {
		if a := bare.do(t, "GET", "/v1/version", "", "Host", tt.host); a.status != tt.status {
			t.Errorf("host %s without tokens: got %d, want %d", tt.host, a.status, tt.status)
		}
		if a := secured.do(t, "GET", "/v1/version", "", "Host", tt.host, "Authorization", "Bearer "+secrets[0]); a.status != 200 {
			t.Errorf("host %s with a token: got %d, want 200", tt.host, a.status)
		}
	}
	// A page of another origin in somebody's browser.
	for _, h := range [][]string{{"Origin", "https://evil.example"}, {"Sec-Fetch-Site", "cross-site"}, {"Origin", "null"}} {
		if a := bare.do(t, "POST", "/v1/gc", "", h...); a.status != 403 || len(bare.called("GC")) > 0 {
			t.Errorf("%v: got %d, want 403", h, a.status)
		}
	}
	if a := bare.do(t, "POST", "/v1/gc", "", "Origin", bare.h.URL); a.status != 200 {
		t.Errorf("the own origin: got %d, want 200", a.status)
	}
}

func TestNeedsTokens(t *testing.T) {
	for address, want := range map[string]bool{"127.0.0.1:7000": false, "localhost:0": false, "[::1]:7000": false, "127.1.2.3:1": false,
		"0.0.0.0:7000": true, ":7000": true, "[::]:7000": true, "10.0.0.1:7000": true, "example.org:80": true, "7000": true} {
		if got := NeedsTokens(address); got != want {
			t.Errorf("NeedsTokens(%q): got %v, want %v", address, got, want)
		}
	}
	if err := Serve(t.Context(), Options{Engine: newFake()}, Listen{Addresses: []string{"0.0.0.0:0"}}); err == nil || !strings.Contains(err.Error(), "could use this host") {
		t.Errorf("got %v, want a refusal to listen everywhere without tokens", err)
	}
}

// TestNothingSecretIsLogged sends what must not be logged in every place where
// it can come.
func TestNothingSecretIsLogged(t *testing.T) {
	var log syncBuffer
	k, secrets := tokens(t, Token{Name: "one"})
	l := newLab(t, func(o *Options) {
		o.Tokens = k
		o.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	auth := []string{"Authorization", "Bearer " + secrets[0]}
	l.do(t, "POST", "/v1/sandboxes/box/exec", `{"args":["hush1"],"env":["A=hush2"],"stdin":"hush3"}`, auth...)
	l.do(t, "POST", "/v1/vms/box/cmd", `{"cmd":"hush4"}`, auth...)
	l.do(t, "GET", "/v1/sandboxes/box/files?path=/hush5", "", auth...)
	l.do(t, "PUT", "/v1/sandboxes/box/files?path=/tmp/x", "hush6", auth...)
	l.do(t, "POST", "/v1/builds?build_arg=A=hush7", "tar", append(auth, "Sietch-Build-Secrets", "hush8")...)
	l.do(t, "GET", "/v1/sandboxes", "", "Authorization", "Bearer hush9")
	l.h.Close()
	text := log.String()
	if strings.Count(text, "msg=request") != 6 {
		t.Fatalf("got log\n%s\nwant six requests", text)
	}
	if strings.Contains(text, "hush") || strings.Contains(text, secrets[0]) {
		t.Errorf("something secret is in the log:\n%s", text)
	}
	if !strings.Contains(text, "token=one") || !strings.Contains(text, "sandbox=box") {
		t.Errorf("token and sandbox are not in the log:\n%s", text)
	}
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func TestRequestID(t *testing.T) {
	l := newLab(t, nil)
	if a := l.do(t, "GET", "/healthz", "", "X-Request-Id", "mine-1"); a.header.Get("X-Request-Id") != "mine-1" {
		t.Errorf("got %q, want the caller's", a.header.Get("X-Request-Id"))
	}
	if a := l.do(t, "GET", "/healthz", "", "X-Request-Id", "a b\"c"); a.header.Get("X-Request-Id") == "a b\"c" {
		t.Error("an id that is not fit for a log is taken")
	}
}

func TestIdempotencyKey(t *testing.T) {
	l := newLab(t, nil)
	body := `{"from":"debian:bookworm"}`
	first := l.do(t, "POST", "/v1/sandboxes", body, "Idempotency-Key", "k1")
	again := l.do(t, "POST", "/v1/sandboxes", body, "Idempotency-Key", "k1")
	if first.status != 201 || again.status != 201 || first.body != again.body || again.header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("got %d %s, then %d %s, want the same", first.status, first.body, again.status, again.body)
	}
	if n := len(l.called("Run")); n != 1 {
		t.Errorf("run %d times, want once", n)
	}
	if a := l.do(t, "POST", "/v1/sandboxes", `{"from":"v1"}`, "Idempotency-Key", "k1"); a.status != 422 || !strings.Contains(a.body, "key_reused") {
		t.Errorf("another body: got %d %s, want 422", a.status, a.body)
	}
	if a := l.do(t, "POST", "/v1/gc", "", "Idempotency-Key", "k1"); a.status != 422 {
		t.Errorf("another route: got %d, want 422", a.status)
	}
	// What failed is tried again.
	l.fails["Run"] = runtime.ErrBusy
	l.do(t, "POST", "/v1/sandboxes", body, "Idempotency-Key", "k2")
	delete(l.fails, "Run")
	if a := l.do(t, "POST", "/v1/sandboxes", body, "Idempotency-Key", "k2"); a.status != 201 {
		t.Errorf("after a failure: got %d, want 201", a.status)
	}
	// A stream that ends is kept as a whole.
	f1 := l.do(t, "POST", "/v1/forks", `{"from":"box","n":2}`, "Idempotency-Key", "k3")
	f2 := l.do(t, "POST", "/v1/forks", `{"from":"box","n":2}`, "Idempotency-Key", "k3")
	if f1.body != f2.body || len(l.called("Fork")) != 1 {
		t.Errorf("forked %d times: %s, %s", len(l.called("Fork")), f1.body, f2.body)
	}
}

func TestIdempotentCallsSideBySide(t *testing.T) {
	l := newLab(t, nil)
	goOn := make(chan struct{})
	l.run = func(context.Context, runtime.RunRequest) error { <-goOn; return nil }
	bodies := make(chan string, 4)
	for range 4 {
		go func() {
			bodies <- l.do(t, "POST", "/v1/sandboxes", `{"from":"debian:bookworm"}`, "Idempotency-Key", "k").body
		}()
	}
	time.Sleep(100 * time.Millisecond)
	close(goOn)
	first := <-bodies
	for range 3 {
		if b := <-bodies; b != first {
			t.Errorf("got %s and %s, want one answer", first, b)
		}
	}
	if n := len(l.called("Run")); n != 1 {
		t.Errorf("run %d times, want once", n)
	}
}

func TestReplaysAreBounded(t *testing.T) {
	p, err := newReplays("", nil)
	if err != nil {
		t.Fatal(err)
	}
	now := testNow
	p.now = func() time.Time { return now }
	add := func(i, size int) {
		e, _, _ := p.enter([32]byte{byte(i), byte(i >> 8), byte(i >> 16)}, [32]byte{})
		e.answer = &answered{200, http.Header{}, make([]byte, size)}
		p.leave(e)
	}
	for i := range 200 {
		add(i, 1<<20)
	}
	if p.bytes > replayBytes || len(p.calls) != replayBytes>>20 {
		t.Errorf("got %d bytes in %d answers, want at most %d", p.bytes, len(p.calls), replayBytes)
	}
	for i := range replayEntries + 100 {
		add(1000+i, 1)
	}
	if len(p.calls) > replayEntries {
		t.Errorf("got %d answers, want at most %d", len(p.calls), replayEntries)
	}
	now = now.Add(replayAge)
	add(1<<20, 1)
	if len(p.calls) != 1 || p.order.Len() != 1 {
		t.Errorf("got %d answers after a day, want the new one alone", len(p.calls))
	}
}

// TestKeysOutliveTheServer: what was answered is answered again by the next
// server, what was under way is called interrupted, and what failed is free.
func TestKeysOutliveTheServer(t *testing.T) {
	dir := t.TempDir()
	withDir := func(o *Options) { o.StateDir = dir }
	l := newLab(t, withDir)
	body := `{"from":"debian:bookworm"}`
	first := l.do(t, "POST", "/v1/sandboxes", body, "Idempotency-Key", "done")
	l.fails["Run"] = runtime.ErrBusy
	l.do(t, "POST", "/v1/sandboxes", body, "Idempotency-Key", "failed")
	delete(l.fails, "Run")
	stuck, end := make(chan struct{}), make(chan struct{})
	l.run = func(context.Context, runtime.RunRequest) error { close(stuck); <-end; return nil }
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.do(t, "POST", "/v1/sandboxes", body, "Idempotency-Key", "cut")
	}()
	<-stuck
	defer func() { close(end); <-ended }()

	// A dying host may leave half a line.
	file := filepath.Join(dir, "calls.jsonl")
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteString(`{"key":"12`)
	f.Close()

	for range 2 { // the second reads what the first wrote anew
		next := newLab(t, withDir)
		again := next.do(t, "POST", "/v1/sandboxes", body, "Idempotency-Key", "done")
		if again.body != first.body || again.status != 201 || again.header.Get("Content-Type") != first.header.Get("Content-Type") {
			t.Errorf("got %d %s, want %s", again.status, again.body, first.body)
		}
		cut := next.do(t, "POST", "/v1/sandboxes", body, "Idempotency-Key", "cut")
		if cut.status != 409 || !strings.Contains(cut.body, `"interrupted"`) || !strings.Contains(cut.body, "new key") {
			t.Errorf("got %d %s, want the call to be interrupted", cut.status, cut.body)
		}
		if a := next.do(t, "POST", "/v1/gc", "", "Idempotency-Key", "cut"); a.status != 422 {
			t.Errorf("another call with its key: got %d %s, want 422", a.status, a.body)
		}
		if n := len(next.called("Run")); n != 0 {
			t.Errorf("run %d times, want never", n)
		}
	}
	next := newLab(t, withDir)
	if a := next.do(t, "POST", "/v1/sandboxes", body, "Idempotency-Key", "failed"); a.status != 201 {
		t.Errorf("the key of a call that failed: got %d %s, want 201", a.status, a.body)
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("got %v, %v, want a private file", st.Mode(), err)
	}
}

// TestKeysThatCannotBeKept: the promise is not given when it cannot be held.
func TestKeysThatCannotBeKept(t *testing.T) {
	l := newLab(t, func(o *Options) { o.StateDir = t.TempDir() })
	l.s.once.log.file.Close()
	a := l.do(t, "POST", "/v1/sandboxes", `{"from":"debian:bookworm"}`, "Idempotency-Key", "k")
	if a.status != 503 || !strings.Contains(a.body, "without one") || len(l.called("Run")) != 0 {
		t.Errorf("got %d %s, run %d times", a.status, a.body, len(l.called("Run")))
	}
	if a := l.do(t, "POST", "/v1/sandboxes", `{"from":"debian:bookworm"}`); a.status != 201 {
		t.Errorf("without a key: got %d %s", a.status, a.body)
	}
}

// TestNotedCallsAreBounded: the file is written anew when it has grown.
func TestNotedCallsAreBounded(t *testing.T) {
	p, err := newReplays(t.TempDir(), func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	p.log.limit = 2 * replayBytes
	var most int64
	for i := range 110 {
		e, _, err := p.enter([32]byte{byte(i), byte(i >> 8)}, [32]byte{})
		if err != nil {
			t.Fatal(err)
		}
		e.answer = &answered{200, http.Header{}, make([]byte, 1<<20)}
		p.leave(e)
		most = max(most, p.log.size)
	}
	if most > p.log.limit+2<<20 || p.log.size == most {
		t.Errorf("got %d MiB at most, %d at the end", most>>20, p.log.size>>20)
	}
}
