package cloudhypervisor

import (
	"errors"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/runtime/vmm"
)

// idMaps makes user namespaces that stand for the mapping of one owner.
type idMaps struct {
	user vmm.Jail
	made map[[2]uint32]*os.File
}

func (m *idMaps) close() {
	for _, f := range m.made {
		f.Close()
	}
}

// allowed reports whether the user may open a file without being its owner.
func (m *idMaps) allowed(st unix.Stat_t, kind entryKind) bool {
	need := uint32(4)
	switch kind {
	case writeFile:
		need = 6
	case runFile:
		need = 5
	}
	mode := st.Mode & 7
	switch {
	case st.Uid == uint32(m.user.UID):
		mode = st.Mode >> 6 & 7
	case st.Gid == uint32(m.user.GID):
		mode = st.Mode >> 3 & 7
	}
	return mode&need == need
}

// of returns a user namespace in which uid and gid are the jail's user and group.
func (m *idMaps) of(uid, gid uint32) (*os.File, error) {
	key := [2]uint32{uid, gid}
	if f := m.made[key]; f != nil {
		return f, nil
	}
	// A namespace needs a process to be made with. This one is stopped by ptrace
	// before its first instruction and never runs.
	p, err := os.StartProcess("/proc/self/exe", []string{"sietch-idmap"}, &os.ProcAttr{Sys: &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: int(uid), HostID: m.user.UID, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: int(gid), HostID: m.user.GID, Size: 1}},
		Ptrace:      true,
		Pdeathsig:   syscall.SIGKILL,
	}})
	if err != nil {
		return nil, err
	}
	f, err := os.Open("/proc/" + strconv.Itoa(p.Pid) + "/ns/user")
	kerr := p.Kill()
	_, werr := p.Wait()
	if err = errors.Join(err, kerr, werr); err != nil {
		if f != nil {
			f.Close()
		}
		return nil, err
	}
	if m.made == nil {
		m.made = map[[2]uint32]*os.File{}
	}
	m.made[key] = f
	return f, nil
}
