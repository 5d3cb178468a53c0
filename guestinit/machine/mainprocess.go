package machine

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/guestinit/proto"
	"github.com/sietch-dev/sietch/guestinit/reaper"
)

// mainOutput is the first virtio console port; what is written there is the
// sandbox's log.
const mainOutput = "/dev/hvc0"

// mainProcess is the image's command.
type mainProcess struct {
	mu      sync.Mutex
	pending bool            // there is one, and it has not been tried yet
	process *reaper.Process // nil: never started
	code    *int            // nil: running or never started
}

func (p *mainProcess) status() proto.MainStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := proto.MainStatus{ExitCode: p.code, Running: p.code == nil && (p.pending || p.process != nil)}
	if s.Running && p.process != nil {
		s.PID = p.process.PID
	}
	return s
}

func (p *mainProcess) ended(code int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pending, p.code = false, &code
}

// startMain starts the image's command, if it has one. That it cannot be
// started is its result, not the machine's failure: the machine can be looked
// into.
func (m *Machine) startMain() {
	if len(m.config.Args) == 0 {
		return
	}
	log := openMainOutput()
	failed := func(code int, reason string) {
		fmt.Fprintf(log, "sietch: %s\n", reason)
		log.Close()
		m.main.ended(code)
	}
	const cannotExecute = 126
	if dir := m.config.WorkingDir; dir != "" {
		// As container engines do. Failing shows when the directory is needed.
		_ = os.MkdirAll(filepath.Join("/", dir), 0o755)
	}
	p, status, err := m.server.Prepare(proto.ExecRequest{Args: m.config.Args})
	if err != nil {
		failed(cannotExecute, err.Error())
		return
	}
	if status != nil {
		failed(status.Code, status.Error)
		return
	}
	// A pipe, not the console itself: that is a terminal, and programs behave
	// differently on one.
	out, in, err := os.Pipe()
	if err == nil {
		err = p.Own(in)
	}
	if err != nil {
		failed(cannotExecute, err.Error())
		return
	}
	p.Cmd.Stdout, p.Cmd.Stderr = in, in
	process, err := m.reaper.Start(p.Cmd)
	in.Close()
	if err != nil {
		out.Close()
		code, reason := cannotExecute, err.Error()
		if s := p.StartFailure(err); s != nil {
			code, reason = s.Code, s.Error
		}
		failed(code, reason)
		return
	}
	m.main.mu.Lock()
	m.main.process = process
	m.main.mu.Unlock()
	go func() {
		<-process.Done()
		m.main.ended(process.ExitCode())
	}()
	go func() { // until nobody holds the pipe any more
		io.Copy(writerOnly{log}, out)
		out.Close()
		log.Close()
	}()
}

// writerOnly hides ReadFrom, which would try splice(2) into a terminal.
type writerOnly struct{ io.Writer }

// openMainOutput opens the log for writing, or the console where the machine
// has no virtio console.
func openMainOutput() *os.File {
	f, err := openVirtioConsole()
	if err != nil {
		if f, err = os.OpenFile("/dev/console", os.O_WRONLY|unix.O_NOCTTY, 0); err != nil {
			return os.Stderr
		}
		return f
	}
	if err := makeRaw(int(f.Fd())); err != nil && !errors.Is(err, unix.ENOTTY) {
		report(fmt.Errorf("prepare %s: %w", mainOutput, err))
	}
	return f
}

// openVirtioConsole opens the first port. Its driver learns of ports by messages
// from the VMM, so a device that is there may have its port only a little later.
func openVirtioConsole() (*os.File, error) {
	const portLimit = 2 * time.Second
	for end := time.Now().Add(portLimit); ; time.Sleep(2 * time.Millisecond) {
		f, err := os.OpenFile(mainOutput, os.O_WRONLY|unix.O_NOCTTY, 0)
		if err == nil || time.Now().After(end) {
			return f, err
		}
		devices, _ := filepath.Glob("/sys/bus/virtio/drivers/virtio_console/virtio*")
		if len(devices) == 0 {
			return nil, err
		}
	}
}

// makeRaw makes a terminal pass bytes on as they are.
func makeRaw(fd int) error {
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return err
	}
	t.Oflag &^= unix.OPOST
	t.Lflag &^= unix.ECHO | unix.ICANON | unix.ISIG
	return unix.IoctlSetTermios(fd, unix.TCSETS, t)
}
