package machine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/guestinit/agent"
	"github.com/sietch-dev/sietch/guestinit/boot"
	"github.com/sietch-dev/sietch/guestinit/identity"
	"github.com/sietch-dev/sietch/guestinit/proto"
	"github.com/sietch-dev/sietch/guestinit/reaper"
)

// namesDir is where the files of package identity are.
const namesDir = boot.StateDir + "/etc"

// Machine is a booted guest, seen from the process that serves the host.
type Machine struct {
	config   proto.Config
	layer    *os.File
	reaper   *reaper.Reaper
	server   *agent.Server
	identity *identity.Applier
	main     mainProcess

	beside bool // process 1 is an init system

	ending sync.Once
	// end powers the machine off, in the way its process 1 does that.
	end func()
}

// Run is process 1 of a machine without an init system of its own. It returns
// only when the machine cannot be served.
func Run(s *boot.System) error {
	names, remarks, err := mountNames(s.Config)
	report(s.Remarks...)
	report(remarks...)
	if err != nil {
		return err
	}
	m, err := newMachine(s.Config, s.Layer, names)
	if err != nil {
		return err
	}
	m.end = m.powerOff
	if err := m.identity.Apply(context.Background(), s.Config.Identity); err != nil {
		return fmt.Errorf("apply identity: %w", err)
	}
	ln, err := listen()
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- m.server.Serve(ln) }()
	s.Ready()
	report(s.Modules.LoadForDevices())
	m.startMain()
	go m.settleDown(s.Modules)
	return <-served
}

func mountNames(c proto.Config) (*identity.Names, []error, error) {
	o := identity.NamesOptions{Dir: namesDir, Root: "/", MachineID: c.Init}
	if c.Network {
		o.DNS = proto.GatewayAddr
	}
	return identity.Mount(o)
}

func newMachine(c proto.Config, layer *os.File, names *identity.Names) (*Machine, error) {
	r, err := reaper.New()
	if err != nil {
		return nil, err
	}
	m := &Machine{config: c, layer: layer, reaper: r}
	m.main.pending = len(c.Args) > 0
	m.watchSignals()
	m.identity, err = identity.New(identity.Options{Names: names, Start: m.start, Env: c.Env})
	if err != nil {
		return nil, err
	}
	gateway := netip.MustParseAddr(proto.GatewayAddr)
	m.server = agent.New(agent.Options{
		Env:         c.Env,
		DefaultUser: c.User,
		DefaultDir:  c.WorkingDir,
		Allow:       func(a netip.Addr) bool { return a == gateway },
		Start:       m.start,
		Main:        m.mainStatus,
		Identify:    m.identity.Apply,
		Shutdown: func(context.Context) error {
			m.shutDown()
			return nil
		},
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	return m, nil
}

// start is agent.Options.Start.
func (m *Machine) start(cmd *exec.Cmd) (int, func() (unix.WaitStatus, error), error) {
	p, err := m.reaper.Start(cmd)
	if err != nil {
		return 0, nil, err
	}
	if m.beside {
		// This process is spared when memory runs out, its children are not.
		report(ignoreGone(os.WriteFile("/proc/"+strconv.Itoa(p.PID)+"/oom_score_adj", []byte("0"), 0)))
	}
	return p.PID, func() (unix.WaitStatus, error) {
		<-p.Done()
		return p.Status(), nil
	}, nil
}

func ignoreGone(err error) error {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// shutDown starts powering off and returns at once.
func (m *Machine) shutDown() {
	m.ending.Do(func() { go m.end() })
}

// mainStatus is agent.Options.Main: an init system is the main process.
func (m *Machine) mainStatus() proto.MainStatus {
	if m.beside {
		return proto.MainStatus{Running: true, PID: 1}
	}
	return m.main.status()
}

// listen opens the agent's port on the tap address alone.
func listen() (net.Listener, error) {
	ln, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(proto.GuestAddr), proto.Port)))
	if err != nil {
		return nil, fmt.Errorf("listen for the host: %w", err)
	}
	return ln, nil
}

// report says on the console what did not work.
func report(errs ...error) {
	if err := errors.Join(errs...); err != nil {
		fmt.Fprintf(os.Stderr, "sietch: %v\n", err)
	}
}
