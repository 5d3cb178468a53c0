package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/guestinit/proto"
)

// defaultPath is what docker gives an image that sets none.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Exit codes of a shell, and timeout(1), for what is not the process's doing.
const (
	exitTimeout       = 124
	exitNotExecutable = 126
	exitNotFound      = 127
	exitSignal        = 128 // plus the signal's number
	exitLost          = 255
)

// command makes the process a request asks for, with nothing but an empty stdin. A
// non-nil ExitStatus means that it cannot be run, as a shell would say it; an
// error that the request is wrong.
func (s *Server) command(r proto.ExecRequest) (*exec.Cmd, account, *proto.ExitStatus, error) {
	args, env := rawOr(r.RawArgs, r.Args), rawOr(r.RawEnv, r.Env)
	if err := checkRequest(args, env, r); err != nil {
		return nil, account{}, nil, err
	}
	user := r.User
	if user == "" {
		user = s.o.DefaultUser
	}
	who, err := lookupAccount("/etc/passwd", "/etc/group", user)
	if err != nil {
		return nil, who, nil, err
	}
	dir := s.o.DefaultDir
	if r.WorkingDir != "" {
		// Relative to the image's, as docker does.
		dir = r.WorkingDir
		if !filepath.IsAbs(dir) {
			dir = filepath.Join("/", s.o.DefaultDir, dir)
		}
	}
	if dir == "" {
		dir = "/"
	}
	if fi, err := os.Stat(dir); err != nil {
		return nil, who, nil, coded(proto.CodeInvalid, "working directory %s: %w", dir, cause(err))
	} else if !fi.IsDir() {
		return nil, who, nil, coded(proto.CodeInvalid, "working directory %s: %w", dir, unix.ENOTDIR)
	}

	env = s.environment(env, who, r.TTY)
	path, err := lookPath(args[0], lastValue(env, "PATH"), dir)
	if err != nil {
		return nil, who, startFailure(args[0], err), nil
	}
	cmd := &exec.Cmd{Path: path, Args: args, Env: env, Dir: dir, Stdin: s.null()}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = who.credential()
	}
	return cmd, who, nil, nil
}

func rawOr(raw [][]byte, text []string) []string {
	if raw == nil {
		return text
	}
	s := make([]string, len(raw))
	for i, b := range raw {
		s[i] = string(b)
	}
	return s
}

// checkRequest finds everything wrong with a request at once.
func checkRequest(args, env []string, r proto.ExecRequest) error {
	var wrong []error
	if len(args) == 0 || args[0] == "" {
		wrong = append(wrong, errors.New("args: no command"))
	}
	for _, a := range args {
		if strings.IndexByte(a, 0) >= 0 {
			wrong = append(wrong, errors.New("args: an argument contains a NUL byte"))
		}
	}
	for _, e := range env {
		if name, _, ok := strings.Cut(e, "="); !ok || name == "" || strings.IndexByte(e, 0) >= 0 {
			wrong = append(wrong, fmt.Errorf("env: %q is not NAME=VALUE", e))
		}
	}
	if strings.IndexByte(r.WorkingDir, 0) >= 0 {
		wrong = append(wrong, errors.New("working_dir: contains a NUL byte"))
	}
	if r.TimeoutMS < 0 {
		wrong = append(wrong, errors.New("timeout_ms: negative"))
	}
	if wrong == nil {
		return nil
	}
	return &codedError{proto.CodeInvalid, errors.Join(wrong...)}
}

// environment is the sandbox's own, what belongs to the user and the terminal
// where it is not set, and the request's, later wins.
func (s *Server) environment(extra []string, who account, tty bool) []string {
	env := make([]string, 0, len(s.o.Env)+len(extra)+6)
	env = append(env, "PATH="+defaultPath)
	if host, err := os.Hostname(); err == nil {
		env = append(env, "HOSTNAME="+host)
	}
	if tty {
		env = append(env, "TERM=xterm")
	}
	env = append(env, "HOME="+who.home)
	if who.name != "" {
		env = append(env, "USER="+who.name)
	}
	env = append(env, s.o.Env...)
	return append(env, extra...)
}

func lastValue(env []string, name string) string {
	for i := len(env) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(env[i], name+"="); ok {
			return v
		}
	}
	return ""
}

// lookPath finds a program as a shell in dir would with this PATH.
func lookPath(file, path, dir string) (string, error) {
	if strings.Contains(file, "/") {
		full := file
		if !filepath.IsAbs(file) {
			full = dir + "/" + file
		}
		return full, executable(full)
	}
	var denied error
	for _, d := range filepath.SplitList(path) {
		if !filepath.IsAbs(d) { // an empty element is the working directory
			d = filepath.Join(dir, d)
		}
		full := filepath.Join(d, file)
		err := executable(full)
		if err == nil {
			return full, nil
		}
		if denied == nil && errors.Is(err, unix.EACCES) {
			denied = err
		}
	}
	if denied != nil {
		return "", denied
	}
	return "", exec.ErrNotFound
}

func executable(path string) error {
	fi, err := os.Stat(path)
	switch {
	case err != nil:
		return cause(err)
	case fi.IsDir():
		return unix.EISDIR
	case fi.Mode()&0o111 == 0:
		return unix.EACCES
	}
	return nil
}

// startFailure says in a shell's terms why a program did not start; nil when
// the reason is not the program.
func startFailure(name string, err error) *proto.ExitStatus {
	var errno unix.Errno
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return &proto.ExitStatus{Code: exitNotFound, Error: name + ": command not found"}
	case !errors.As(err, &errno):
		return nil
	}
	switch errno {
	case unix.ENOENT, unix.ENOTDIR:
		text := name + ": no such file or directory"
		if executable(name) == nil {
			text = name + ": the interpreter it names does not exist"
		}
		return &proto.ExitStatus{Code: exitNotFound, Error: text}
	case unix.EAGAIN, unix.ENOMEM, unix.EMFILE, unix.ENFILE:
		return nil
	}
	return &proto.ExitStatus{Code: exitNotExecutable, Error: name + ": " + errno.Error()}
}

// cause strips operation and path from an error of package os.
func cause(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// exitStatus is how a shell reports the end of a process.
func exitStatus(ws unix.WaitStatus) proto.ExitStatus {
	if ws.Signaled() {
		return proto.ExitStatus{Code: exitSignal + int(ws.Signal()), Signal: int(ws.Signal())}
	}
	return proto.ExitStatus{Code: ws.ExitStatus()}
}

// startDirectly is Options.Start for a process that is not the machine's reaper.
func startDirectly(cmd *exec.Cmd) (int, func() (unix.WaitStatus, error), error) {
	if err := cmd.Start(); err != nil {
		return 0, nil, err
	}
	return cmd.Process.Pid, func() (unix.WaitStatus, error) {
		st, err := cmd.Process.Wait()
		if err != nil {
			return 0, err
		}
		ws, _ := st.Sys().(syscall.WaitStatus)
		return unix.WaitStatus(ws), nil
	}, nil
}
