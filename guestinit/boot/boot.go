package boot

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/guestinit/agent"
	"github.com/sietch-dev/sietch/guestinit/proto"
)

// Where things are in the initramfs and, below StateDir, in the machine.
const (
	configFile = "/sietch/config.json"

	// StateDir is a small file system in memory for what guestinit itself
	// needs while the machine runs. It is below /dev because that is there in
	// every machine and on no disk.
	StateDir = "/dev/.sietch"
)

// System is a booted machine.
type System struct {
	Config    proto.Config
	RawConfig []byte // as it was read, for another process
	// Layer is the root of the writable layer's file system, which is mounted
	// where no path leads. Power off makes it read-only through this.
	Layer *os.File
	// Modules can still be loaded; those only the boot needed are gone.
	Modules *Modules
	// Remarks are what did not work and does not matter enough to stop.
	Remarks []error
	// Steps say when each step was done, since the kernel started.
	Steps []Step
}

// Step is one entry of the boot's time table.
type Step struct {
	Name string
	At   time.Duration
}

func (s *System) remark(err error) {
	if err != nil {
		s.Remarks = append(s.Remarks, err)
	}
}

func (s *System) done(step string) {
	s.Steps = append(s.Steps, Step{step, sinceKernel()})
}

// sinceKernel is the time since the kernel started its clock.
func sinceKernel() time.Duration {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// Run boots the machine. Standard input, output and error are the console
// afterwards, whether or not it succeeds.
func Run() (*System, error) {
	s := new(System)
	s.done("init")
	if err := mountKernelFS(); err != nil {
		return s, err
	}
	if err := attachConsole(); err != nil {
		return s, err
	}
	// Decoding takes an emulated machine as long as loading a module does.
	config := make(chan error, 1)
	go func() { config <- s.readConfig() }()

	m, err := openModules("/modules")
	if err != nil {
		return s, err
	}
	s.Modules = m
	if err := m.loadForRoot(); err != nil {
		return s, err
	}
	s.done("modules")
	if err := <-config; err != nil {
		return s, err
	}

	disks, err := findDisks("/sys/block", "/dev", 5*time.Second)
	if err != nil {
		return s, err
	}
	if err := s.mountRoot(disks); err != nil {
		return s, err
	}
	s.done("root")
	if err := s.enterRoot(); err != nil {
		return s, err
	}
	s.furnish()
	s.done("mounts")

	if err := s.setUpNetwork(); err != nil {
		return s, err
	}
	s.done("network")
	return s, nil
}

func (s *System) readConfig() error {
	b, err := os.ReadFile(configFile)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("no %s: the initramfs was booted without its config", configFile)
	}
	if err != nil {
		return fmt.Errorf("read config: %w", err)
	}
	if s.Config, err = agent.DecodeConfig(b); err != nil {
		return fmt.Errorf("read config: %w", err)
	}
	s.RawConfig = b
	if s.Config.Version != proto.Version {
		return fmt.Errorf("read config: version %d, this guest init speaks %d", s.Config.Version, proto.Version)
	}
	return nil
}

// Ready says on the console how long the way here took.
func (s *System) Ready() {
	s.done("ready")
	line := "sietch: ready"
	for _, step := range s.Steps {
		line += fmt.Sprintf(" %s=%d", step.Name, step.At.Milliseconds())
	}
	fmt.Fprintln(os.Stderr, line+" ms since kernel start")
}
