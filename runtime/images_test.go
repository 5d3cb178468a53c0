package runtime

import (
	"testing"

	"github.com/sietch-dev/sietch/builder"
)

// The same content under several names is one image; it is shown by the name
// that was asked for.
func TestAskedName(t *testing.T) {
	i := builder.Image{ID: "sha256:ab", Names: []string{"agent:latest", "localhost:1/app:2", "other:v1"}}
	for _, tt := range []struct {
		asked     []string
		name, tag string
	}{
		{nil, "", ""},
		{[]string{"other:v1", "agent"}, "other", "v1"},
		{[]string{"docker.io/library/agent"}, "agent", "latest"},
		{[]string{"localhost:1/app:2"}, "localhost:1/app", "2"},
		{[]string{""}, "agent", "latest"},
		{[]string{"app@sha256:" + "00"}, "", ""},
	} {
		v := imageView(i, askedName(i, tt.asked))
		if v.Name != tt.name || v.Tag != tt.tag {
			t.Errorf("asked for %q: shown as %q, tag %q; want %q, %q", tt.asked, v.Name, v.Tag, tt.name, tt.tag)
		}
	}
	if got := askedName(builder.Image{}, []string{""}); got != "" {
		t.Errorf("an image without a name is called %q", got)
	}
}
