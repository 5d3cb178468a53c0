package agent

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sietch-dev/sietch/guestinit/proto"
)

// Every field of the configuration arrives, those added later too.
func TestDecodeConfig(t *testing.T) {
	want := proto.Config{
		Version: 1, Hostname: "box", Network: true, Args: []string{"/bin/sh", "-c", "echo \"<&>\u2028\""}, Env: []string{"A=1", "B=\x01\t\\"},
		User: "u:g", WorkingDir: "/w", StopSignal: "SIGINT", Init: true,
		Identity: proto.Identity{Hostname: "h", MachineID: "m", BootID: "b", Time: time.Date(2026, 1, 2, 3, 4, 5, 678, time.UTC), Entropy: []byte{0, 1, 2, 255}, Fork: true},
	}
	for _, v := range []reflect.Value{reflect.ValueOf(want), reflect.ValueOf(want.Identity)} {
		for i := range v.NumField() {
			if v.Field(i).IsZero() {
				t.Fatalf("the test lacks %s.%s", v.Type(), v.Type().Field(i).Name)
			}
		}
	}
	b, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeConfig(b)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if got, err := DecodeConfig([]byte(`{"later":{"a":[1,2.5,null]},"hostname":null}`)); err != nil || !reflect.DeepEqual(got, proto.Config{}) {
		t.Errorf("unknown fields: got %+v, %v", got, err)
	}
	for _, bad := range []string{"", "{", `{"args":"x"}`, `{"version":-1}`, `{} x`, `{"identity":{"time":"yesterday"}}`} {
		if _, err := DecodeConfig([]byte(bad)); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}
