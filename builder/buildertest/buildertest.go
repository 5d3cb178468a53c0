// Package buildertest helps tests of any package that need images.
//
// It owns the cache of base images between test runs: SIETCH_TEST_CACHE, or
// sietch-test in the user's cache directory. Making a Debian base takes the
// better part of a minute and a package mirror; importing it from there takes
// seconds and neither.
package buildertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/builder"
	"github.com/sietch-dev/sietch/runtime/testlane"
)

// DebianName is the image that [Debian] returns.
const DebianName = "debian:bookworm"

// HostEngine turns the process into a build engine when it was started as one.
// Call it first in TestMain of every package whose tests build images: the
// engine is the test binary itself.
func HostEngine() {
	if len(os.Args) < 2 || os.Args[1] != builder.EngineCommand {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	err := builder.EngineMain(ctx, os.Args[2:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Debian puts a Debian base image into the store of b, from the cache of
// earlier test runs or from the package mirror. It skips t where that cannot be
// done.
func Debian(t testing.TB, b *builder.Builder) builder.Image {
	t.Helper()
	testlane.Need(t, testlane.Root, testlane.BuildKit)
	if img, err := b.Image(t.Context(), DebianName); err == nil {
		return img
	}
	dir, err := cacheDir()
	if err != nil {
		t.Fatal(err)
	}
	// Packages are tested at the same time: one makes it, the others wait.
	unlock, err := lock(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	archive := filepath.Join(dir, strings.ReplaceAll(DebianName, ":", "-")+".tar")
	img, err := b.Import(t.Context(), builder.ImportRequest{Source: archive, Name: DebianName})
	if err == nil {
		return img
	}
	if !errors.Is(err, os.ErrNotExist) {
		t.Logf("cached base image is made again: %v", err)
	}
	testlane.Need(t, testlane.Mirror)
	t.Logf("making %s from the package mirror", DebianName)
	if img, err = b.Bootstrap(t.Context(), DebianName, nil); err != nil {
		t.Fatal(err)
	}
	f, err := renameio.NewPendingFile(archive, renameio.WithPermissions(0o600))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Cleanup()
	if err := b.Export(t.Context(), DebianName, f, builder.FormatOCI); err != nil {
		t.Fatal(err)
	}
	if err := f.CloseAtomicallyReplace(); err != nil {
		t.Fatal(err)
	}
	return img
}

func cacheDir() (string, error) {
	dir := os.Getenv("SIETCH_TEST_CACHE")
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(user, "sietch-test")
	}
	return dir, os.MkdirAll(dir, 0o700)
}

func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}
