package builder

import (
	"testing"

	"github.com/sietch-dev/sietch/runtime/testlane"
)

func TestBuildSmoke(t *testing.T) {
	testlane.Need(t, testlane.Root, testlane.BuildKit)
	b := newBuilder(t)
	dir := busyboxContext(t, map[string]string{"Dockerfile": shell + "ENV A=b\nCMD [\"sh\"]\nRUN echo hello > /hello"})
	img, out := build(t, b, BuildRequest{ContextDir: dir, Names: []string{"smoke"}})
	t.Logf("%+v\n%s", img, out)
	fsck(t, img.RootfsPath)
	again, out := build(t, b, BuildRequest{ContextDir: dir, Names: []string{"smoke"}})
	t.Logf("%+v\n%s", again, out)
}
