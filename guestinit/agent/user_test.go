package agent

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLookupAccount(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		return p
	}
	passwd := write("passwd", `# comment
root:x:0:0:root:/root:/bin/sh

app:x:1000:1001::/srv/app:/bin/sh
short:x:1002:1002
broken:x:abc:0::/:/bin/sh
42:x:77:77:a name of digits:/seven:/bin/sh
`)
	group := write("group", "root:x:0:\napp:x:1001:\nwheel:x:10:root,app\nvideo:x:44:other,app\naudio:x:29:application\nown:x:1001:app\n")
	none := filepath.Join(dir, "none")

	tests := []struct {
		passwd, group, user string
		want                account
		bad                 bool
	}{
		{passwd, group, "", account{name: "root", home: "/root", groups: []uint32{10}}, false},
		{passwd, group, "app", account{uid: 1000, gid: 1001, name: "app", home: "/srv/app", groups: []uint32{10, 44}}, false},
		{passwd, group, "1000", account{uid: 1000, gid: 1001, name: "app", home: "/srv/app", groups: []uint32{10, 44}}, false},
		{passwd, group, "app:video", account{uid: 1000, gid: 44, name: "app", home: "/srv/app"}, false},
		{passwd, group, "app:12", account{uid: 1000, gid: 12, name: "app", home: "/srv/app"}, false},
		{passwd, group, "app:", account{}, true},
		{passwd, group, "5:6", account{uid: 5, gid: 6, home: "/"}, false},
		{passwd, group, "5", account{uid: 5, home: "/"}, false},
		{passwd, group, "short", account{uid: 1002, gid: 1002, name: "short", home: "/"}, false},
		{passwd, group, "42", account{uid: 77, gid: 77, name: "42", home: "/seven"}, false},
		{passwd, group, "broken", account{}, true},
		{passwd, group, "nobody", account{}, true},
		{passwd, group, "app:nogroup", account{}, true},
		{passwd, group, "4294967295", account{}, true}, // means "unchanged" to the kernel
		{passwd, group, "-1", account{}, true},
		{none, none, "", account{name: "root", home: home(t)}, false},
		{none, none, "root", account{name: "root", home: home(t)}, false},
		{none, none, "1000:1000", account{uid: 1000, gid: 1000, home: "/"}, false},
		{none, none, "app", account{}, true},
	}
	for _, tt := range tests {
		got, err := lookupAccount(tt.passwd, tt.group, tt.user)
		if tt.bad {
			if err == nil {
				t.Errorf("%q: got %+v, want an error", tt.user, got)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", tt.user, err)
		}
		if d := cmp.Diff(tt.want, got, cmp.AllowUnexported(account{})); d != "" {
			t.Errorf("%q: %s", tt.user, d)
		}
	}
}

// home of a root that no passwd file describes.
func home(t *testing.T) string {
	if fi, err := os.Stat("/root"); err == nil && fi.IsDir() {
		return "/root"
	}
	return "/"
}

func TestEnvironment(t *testing.T) {
	s := New(Options{Env: []string{"A=image", "TERM=image"}})
	env := s.environment([]string{"A=request"}, account{name: "app", home: "/srv"}, true)
	want := map[string]string{"A": "request", "TERM": "image", "HOME": "/srv", "USER": "app", "PATH": defaultPath, "NONE": ""}
	for name, v := range want {
		if got := lastValue(env, name); got != v {
			t.Errorf("%s=%q, want %q", name, got, v)
		}
	}
	if host, _ := os.Hostname(); lastValue(env, "HOSTNAME") != host {
		t.Errorf("HOSTNAME=%q, want %q", lastValue(env, "HOSTNAME"), host)
	}
	if lastValue(s.environment(nil, account{home: "/"}, false), "USER") != "" {
		t.Error("a user without a name has one")
	}
}
