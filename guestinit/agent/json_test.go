package agent

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sietch-dev/sietch/guestinit/proto"
)

// What the host writes with encoding/json is read as it was.
func TestDecodeExec(t *testing.T) {
	id := &proto.Identity{Hostname: "h", MachineID: "m", BootID: "b", Time: time.Now().UTC(), Entropy: []byte{0, 1, 255}, Fork: true}
	for _, want := range []proto.ExecRequest{
		{},
		{Args: []string{"a"}},
		{
			Args: []string{"sh", "-c", "\"quoted\" \\ \n\t\r\b\f\x00\x1f ü 😀 <&> \u2028"}, Env: []string{"A=1", "B="},
			WorkingDir: "/w", User: "u:g", Stdin: true, TTY: true, Rows: math.MaxUint16, Cols: 1, TimeoutMS: 1 << 40,
			Detach: true, RawArgs: [][]byte{{0xff}, {}}, RawEnv: [][]byte{{'A', '=', 0x80}}, Identity: id,
		},
	} {
		b, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := decodeExec(b)
		if err != nil {
			t.Errorf("%s: %v", b, err)
		}
		if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
			t.Errorf("%s: %s", b, d)
		}
	}
	b, _ := json.Marshal(id)
	if got, err := decodeIdentity(b); err != nil || !cmp.Equal(*id, got) {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestDecodeMalformed(t *testing.T) {
	deep := strings.Repeat("[", 1000)
	for _, s := range []string{
		"", " ", "x", "[]", `"s"`, "{", `{"args"}`, `{"args":}`, `{"args":[}`, `{"args":["a",]}`, `{"args":["a" "b"]}`,
		`{"args":["a"]`, `{"args":["a"]} x`, `{"args":[1]}`, `{"args":"a"}`, `{"args":["\q"]}`, `{"args":["\u12"]}`, `{"args":["a`,
		"{\"args\":[\"a\nb\"]}", `{"rows":65536}`, `{"rows":-1}`, `{"rows":1.5}`, `{"stdin":1}`, `{"timeout_ms":-5}`,
		`{"raw_args":["*"]}`, `{"identity":{"time":"yesterday"}}`, `{"identity":{"entropy":"%"}}`, `{"x":` + deep + `}`, `{,}`, `{"a":1,}`,
	} {
		if r, err := decodeExec([]byte(s)); err == nil {
			t.Errorf("%q: accepted as %+v", s, r)
		}
	}
	// Fields of a later version are skipped, whatever is in them.
	r, err := decodeExec([]byte(` { "later" : { "a":[1,-2.5e3,null,true,false,"\"}"] } , "user" : "u" } `))
	if err != nil || r.User != "u" {
		t.Errorf("got %+v, %v", r, err)
	}
}

// FuzzDecode: what encoding/json takes for a request, the scanner does, with
// the same meaning.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{`{"args":["a\u00e9\ud83d\ude00\ud800x"],"rows":7,"identity":{"entropy":"AAE="}}`, `{"x":[{}],"tty":null}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := decodeExec(b)
		var want proto.ExecRequest
		d := json.NewDecoder(strings.NewReader(string(b)))
		if d.Decode(&want) != nil || d.More() || err != nil {
			return
		}
		// encoding/json knows keys in any case and replaces what is not UTF-8.
		if strings.ToLower(string(b)) != string(b) || strings.ToValidUTF8(string(b), "") != string(b) || strings.ContainsAny(string(b), "ſK") {
			return
		}
		if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
			t.Errorf("%q: %s", b, d)
		}
	})
}

func TestEncode(t *testing.T) {
	three := 3
	now := time.Now()
	for _, want := range []proto.Status{
		{},
		{Version: 1, Ready: true, Main: proto.MainStatus{Running: true, PID: 7}, Time: now},
		{Version: 2, Main: proto.MainStatus{ExitCode: &three}, Time: now, Error: "mount \"x\":\n\x01 \\ ü\xff"},
	} {
		var got proto.Status
		b := appendStatus(nil, want)
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		want.Error = strings.ToValidUTF8(want.Error, "\uFFFD")
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	}
	want := proto.ExitStatus{Code: 143, Signal: 15, Error: "<&>"}
	var got proto.ExitStatus
	if err := json.Unmarshal(appendExit(nil, want), &got); err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
	var body proto.ErrorBody
	if err := json.Unmarshal(appendError(nil, "c", "m\x00"), &body); err != nil || body != (proto.ErrorBody{Code: "c", Message: "m\x00"}) {
		t.Errorf("got %+v, %v", body, err)
	}
}
