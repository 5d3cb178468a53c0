package runtime

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/sietch-dev/sietch/branches"
)

// layout names every file of a data directory.
type layout struct {
	data string // absolute
}

func (l layout) images() string    { return filepath.Join(l.data, "images") }
func (l layout) kernel() string    { return filepath.Join(l.data, "kernel") }
func (l layout) store() string     { return filepath.Join(l.data, "store") }
func (l layout) cache() string     { return filepath.Join(l.data, "cache") }
func (l layout) sandboxes() string { return filepath.Join(l.data, "sandboxes") }
func (l layout) tmp() string       { return filepath.Join(l.data, "tmp") }
func (l layout) build() string     { return filepath.Join(l.data, "buildkit") }

func (l layout) sandbox(id string) string { return filepath.Join(l.sandboxes(), id) }

// dumps are of one boot of the host: they are written without fsync, so after a
// power loss their content is not to be trusted, and the store's is.
func (l layout) dumps() string { return filepath.Join(l.cache(), dumpsPrefix+bootID()) }

const dumpsPrefix = "commits-"

func (l layout) dump(id branches.Hash) dump {
	return dump{dir: filepath.Join(l.dumps(), id.String())}
}

// zero is the sparse file that fresh guest RAM of that size maps.
func (l layout) zero(bytes int64) string {
	return filepath.Join(l.cache(), fmt.Sprintf("zero-%d", bytes))
}

// instance is a short name for this data directory, part of the names of kernel
// objects so that several data directories live on one host without touching
// each other.
func (l layout) instance() string {
	sum := sha256.Sum256([]byte(l.data))
	return hex.EncodeToString(sum[:3])
}

// runs is where the sockets of running VMMs are: a unix socket's path must be
// short, however deep the data directory is, and must not survive a reboot.
// cgroup names the control group of a sandbox.
func (l layout) cgroup(id string) string { return l.cgroups() + "/" + id }
func (l layout) cgroups() string         { return "/sietch/" + l.instance() }

func (l layout) runs() string { return filepath.Join("/run/sietch", l.instance()) }

func (l layout) runDir(id string) (string, error) {
	if err := os.MkdirAll(l.runs(), 0o700); err != nil {
		return "", fmt.Errorf("create run directory: %w", err)
	}
	dir, err := os.MkdirTemp(l.runs(), id+"-")
	if err != nil {
		return "", fmt.Errorf("create run directory: %w", err)
	}
	return dir, nil
}

// create makes the directories that every verb expects; all hold secrets.
func (l layout) create() error {
	for _, d := range []string{l.data, l.cache(), l.dumps(), l.sandboxes(), l.tmp()} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return fmt.Errorf("create data directory: %w", err)
		}
	}
	return os.Chmod(l.data, 0o700)
}

const idAlphabet = "abcdefghijklmnopqrstuvwxyz234567"

// newID makes a sandbox id: 10 characters, 50 bits. Names of kernel objects
// derive from it, so it is short.
func newID() string {
	var b [10]byte
	rand.Read(b[:]) // never fails (crypto/rand)
	for i := range b {
		b[i] = idAlphabet[b[i]%32]
	}
	return string(b[:])
}

// newMachineID makes 32 hex digits as in /etc/machine-id.
func newMachineID() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// newUUID makes a random (version 4) UUID as in boot_id.
func newUUID() string {
	var b [16]byte
	rand.Read(b[:])
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	h := hex.EncodeToString(b[:])
	return strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-")
}
