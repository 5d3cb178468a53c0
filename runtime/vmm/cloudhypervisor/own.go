package cloudhypervisor

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/runtime/vmm"
)

// own is the VMM's own directory, where states pass between it and us. It may
// belong to a user who is not trusted: no link there is followed out of it, and
// what is read is bounded.
type own struct {
	dir      string
	uid, gid int // of the directory
}

// Names in the VMM's own directory.
const (
	savedName    = "saved"    // a state to be loaded
	snapshotName = "snapshot" // a state that was saved
)

// stateBytes bounds a file of a saved state: some hundred kilobytes a CPU.
const stateBytes = 64 << 20

// makeOwnDir makes the directory afresh.
func makeOwnDir(s vmm.Spec) (own, error) {
	o := own{dir: ownDir(s.RunDir), uid: os.Geteuid(), gid: os.Getegid()}
	if s.Jail != nil {
		o.uid, o.gid = s.Jail.UID, s.Jail.GID
	}
	err := os.RemoveAll(o.dir)
	if err == nil {
		err = os.Mkdir(o.dir, 0o700)
	}
	if err == nil {
		err = os.Chown(o.dir, o.uid, o.gid)
	}
	if err != nil {
		return o, fmt.Errorf("make directory of cloud-hypervisor: %w", err)
	}
	return o, nil
}

// findOwnDir is makeOwnDir for a machine that has one.
func findOwnDir(runDir string) (own, error) {
	o := own{dir: ownDir(runDir)}
	var st unix.Stat_t
	if err := unix.Lstat(o.dir, &st); err != nil {
		return o, fmt.Errorf("find directory of cloud-hypervisor: %w", err)
	}
	o.uid, o.gid = int(st.Uid), int(st.Gid)
	return o, nil
}

func (o own) path(name ...string) string { return filepath.Join(append([]string{o.dir}, name...)...) }

func (o own) remove(name string) error { return os.RemoveAll(o.path(name)) }

// mkdir makes a directory in it, afresh.
func (o own) mkdir(name string) error {
	if err := o.remove(name); err != nil {
		return err
	}
	if err := os.Mkdir(o.path(name), 0o700); err != nil {
		return err
	}
	return os.Lchown(o.path(name), o.uid, o.gid)
}

// prepare puts the state to be loaded where the VMM can read it, with the paths
// of s.
func (o own) prepare(s vmm.Spec) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("prepare saved state: %w", err)
		}
	}()
	config, err := os.ReadFile(filepath.Join(s.Restore.Dir, configName))
	if err != nil {
		return err
	}
	state, err := os.ReadFile(filepath.Join(s.Restore.Dir, stateName))
	if err != nil {
		return err
	}
	if config, err = placeConfig(config, s); err != nil {
		return err
	}
	if err := o.mkdir(savedName); err != nil {
		return err
	}
	for name, data := range map[string][]byte{configName: config, stateName: state} {
		path := o.path(savedName, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			return err
		}
		if err := os.Lchown(path, o.uid, o.gid); err != nil {
			return err
		}
	}
	return nil
}

// create makes an empty file in a directory of it.
func (o own) create(dir, name string) error {
	root, err := os.OpenRoot(o.dir)
	if err != nil {
		return err
	}
	defer root.Close()
	f, err := root.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// read reads a file of a saved state.
func (o own) read(dir, name string) ([]byte, error) {
	root, err := os.OpenRoot(o.dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := root.OpenFile(filepath.Join(dir, name), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	data, err := io.ReadAll(io.LimitReader(f, stateBytes+1))
	if err == nil && len(data) > stateBytes {
		err = errors.New("more than a saved state can be")
	}
	return data, err
}
